"""Proven floors: what some step of every plan must hold."""
