"""How far plans are from real training steps, in bytes, bits and seconds."""
