"""PyTorch's own checkpointing as a target for plans: which modules to wrap, and which results to save inside them.

Nothing here imports torch: the step comes from the plan, and torch's checkpoint is modelled (wrapped_schedule.py).
"""
