"""The stage programs solved in integers by CP-SAT, with generated stages."""
