"""What is measured on this machine: a planned step beside a plain one, and times of a model's ops."""
