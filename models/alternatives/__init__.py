"""What PyTorch itself offers to train in less memory, applied to any module."""
