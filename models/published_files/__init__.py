"""ONNX files that other people published, planned."""
