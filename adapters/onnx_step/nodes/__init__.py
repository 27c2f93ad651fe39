"""Writing nodes: tensors that stand for their results, and the graph that they add up to."""
