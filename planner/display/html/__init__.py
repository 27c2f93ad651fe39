"""The report on a plan as one HTML page that needs no network."""
