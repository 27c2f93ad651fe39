"""What nodes and values mean to a training step: fused calls, sequences, parameters and roles."""
