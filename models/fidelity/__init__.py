"""Predicted against measured: peaks, bits and times of real training steps."""
