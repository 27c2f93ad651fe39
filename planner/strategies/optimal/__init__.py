"""The only folder that knows effort, threads, and what is tried after what."""
