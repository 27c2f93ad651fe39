"""Nn.Module -> joint graph."""
