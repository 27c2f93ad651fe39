"""Planning a step again for other sizes, from a plan that is there."""
