"""Graph -> TrainingGraph."""
