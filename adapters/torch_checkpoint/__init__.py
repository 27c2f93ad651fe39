"""PyTorch's own checkpointing as a target for plans: which modules to wrap, and what to save inside them.

    wrap_modules(plan, called)       modules for `torch.utils.checkpoint.checkpoint`
    select_ops(plan, called)         the same, and the ops inside them whose outputs are saved

Nothing here imports torch: the step comes from the plan, and what torch's checkpoint does with it is modelled
(see wrapped_schedule.py), so a policy can be made where no PyTorch is installed.
"""
