"""Networks of `transformers` and `diffusers`: planned, trained, or refused by name."""
