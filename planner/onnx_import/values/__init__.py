"""What is known of each value: type, storage, constants and views."""
