"""The same programs solved in integers, stages generated (Benders)."""
