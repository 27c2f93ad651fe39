"""The exact evaluator: labels to a sequence of computations, its peak and its time."""
