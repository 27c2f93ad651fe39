"""The rooms behind onnx_reader: input shapes, one pass over the nodes, views, roles and consistency."""
