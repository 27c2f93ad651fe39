"""Framework adapters: they turn a plan into training that stays inside its bytes."""
