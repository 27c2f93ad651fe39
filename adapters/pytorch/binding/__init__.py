"""From a module and a plan to the module that trains by it, and to the exported ONNX file."""
