"""A plan as one training step in plain ONNX: forward, recomputations, backward, a gradient for each parameter."""
