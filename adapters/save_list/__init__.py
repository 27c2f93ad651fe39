"""Plans rounded to lists of what to save, for runtimes that take no schedule: JAX, Keras, torchtitan."""
