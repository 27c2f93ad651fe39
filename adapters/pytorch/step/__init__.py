"""From a joint graph to the TrainingGraph that is planned, with the work and workspace of each op."""
