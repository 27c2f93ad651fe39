"""What each part of the strategy `optimal` is worth: its plans with every part, and without one at a time."""
