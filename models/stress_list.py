"""Every network of the stress run, by name."""

from __future__ import annotations

from . import stress_perception, stress_text, stress_vision

CASES = {case.name: case for case in (*stress_text.CASES, *stress_vision.CASES, *stress_perception.CASES)}
