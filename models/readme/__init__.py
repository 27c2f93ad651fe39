"""Fills the pages: blocks from committed results and from real runs, and their pictures."""
