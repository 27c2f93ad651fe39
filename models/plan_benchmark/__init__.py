"""Plans of 50 graphs at every budget, by every strategy, on one simulator."""
