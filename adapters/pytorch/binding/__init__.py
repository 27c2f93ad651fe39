"""From a module and a plan to a bound module, and to an ONNX file."""
