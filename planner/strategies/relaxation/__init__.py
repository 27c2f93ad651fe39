"""Lower bounds of the recomputation time: linear relaxations, minimum cuts, certificates."""
