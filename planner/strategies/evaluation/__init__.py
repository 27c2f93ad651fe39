"""Labels -> sequence -> peak and time, exactly."""
