"""From a schedule to generated code, and its run inside autograd."""
