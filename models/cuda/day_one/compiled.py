"""The same times against `torch.compile`, whole and with a memory budget."""

from __future__ import annotations

from torch import nn

from models.alternatives.methods import compile_budget
from models.cuda.day_one.cases import Save, Subject
from models.cuda.day_one.times import Rival, compared
from models.cuda.settings import STANDIN

BACKEND = "aot_eager" if STANDIN else "inductor"
FRACTIONS = (1.0, 0.5)


def run(small: bool, save: Save) -> None:
    """Compile each network anew for each budget."""

    def rival(fraction: float) -> Rival:
        def compiled(subject: Subject) -> nn.Module:
            return compile_budget(fraction, BACKEND)(subject.module)

        return compiled

    compared(small, save, {f"torch.compile ({BACKEND}), budget {f:g}": rival(f) for f in FRACTIONS}, ())
