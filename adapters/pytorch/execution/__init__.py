"""Schedule -> code -> autograd."""
