"""From a module and example arguments to the joint graph of its training step."""
