"""Published and simple strategies to compare with, one file each."""
