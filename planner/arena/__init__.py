"""Static arenas: every allocation of a step at a fixed offset of one large allocation."""
