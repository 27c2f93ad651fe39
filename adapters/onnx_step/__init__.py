"""A plan as one training step in plain ONNX: forward, recomputation as scheduled, backward, a gradient per parameter."""
