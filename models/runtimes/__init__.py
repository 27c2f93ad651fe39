"""Plans run by runtimes other than PyTorch."""
