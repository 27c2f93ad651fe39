"""The ONNX reader: a file as a document, the shapes and the values of its nodes, and what they mean to training."""
