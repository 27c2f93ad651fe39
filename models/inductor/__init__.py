"""Byte budgets under torch.compile against torch's own activation_memory_budget, on a CPU."""
