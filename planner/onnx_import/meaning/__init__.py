"""What nodes stand for: fused calls, parameters and roles."""
