"""Records, tables and pictures of results, and options of command lines."""
