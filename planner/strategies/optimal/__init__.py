"""The strategy `optimal`: what is tried after what, effort and threads."""
