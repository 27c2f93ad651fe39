"""Chain of blocks, options, dynamic programme."""
