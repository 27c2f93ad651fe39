"""What a profile of ONNX Runtime is worth: ratios of backwards, and how far its times are from PyTorch's steps."""
