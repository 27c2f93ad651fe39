"""PyTorch's own checkpointing as a target for plans: which modules to wrap, and which results to save inside them.

    wrap_modules(plan, called)       modules for `torch.utils.checkpoint.checkpoint`
    select_ops(plan, called)         the same, and the ops inside them whose outputs are saved

Nothing here imports torch: the step comes from the plan, and torch's checkpoint is modelled (wrapped_schedule.py). So a
policy can be made where PyTorch is not installed.
"""
