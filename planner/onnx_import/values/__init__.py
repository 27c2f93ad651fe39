"""What is known of each value: memory layout, constants and views."""
