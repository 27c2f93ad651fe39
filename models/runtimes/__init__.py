"""Plans in other frameworks: examples that check what they do."""
