"""Guards on what the values of arguments and buffers decide: a branch, a size."""
