"""A chain of blocks: the ways to run each block, and a dynamic programme over the chain."""
