"""What people see: reports and progress on terminals, and what Ctrl-C does."""
