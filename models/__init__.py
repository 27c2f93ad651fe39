"""The model zoo: plain torch definitions, their ONNX export, and the scripts that measure them."""
