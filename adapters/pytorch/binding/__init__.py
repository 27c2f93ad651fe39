"""Plan + module -> bound module; ONNX file."""
