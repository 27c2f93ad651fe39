"""Time and workspace of every op: rooflines of devices, and measured profiles."""
