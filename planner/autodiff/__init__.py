"""From a forward graph to a training graph: what each backward reads and how gradients flow."""
