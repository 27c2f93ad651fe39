"""Plan <-> JSON."""
