"""From a schedule to generated code that runs inside autograd."""
