"""A trainable module from an ONNX file: the planner's reading of it, run by calls of torch."""
