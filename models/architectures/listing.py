"""Every network of the stress run, by name."""

from __future__ import annotations

from models.architectures import perception as stress_perception
from models.architectures import text as stress_text
from models.architectures import vision as stress_vision

CASES = {case.name: case for case in (*stress_text.CASES, *stress_vision.CASES, *stress_perception.CASES)}
