"""The plan file: a Plan as JSON, written and read."""
