"""The networks that OGC was published with: planned, run and compared."""
