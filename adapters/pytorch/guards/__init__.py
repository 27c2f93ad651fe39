"""State outside the graph that a step depends on: what tracing must not change, and what must stay as it was traced."""
