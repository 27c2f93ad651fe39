"""Joint graph -> TrainingGraph."""
