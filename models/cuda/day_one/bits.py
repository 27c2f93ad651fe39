"""Whether planned training leaves behind the bits of eager training, where eager training repeats itself."""

from __future__ import annotations

from models.meters.repeatable import repeatable  # first: it sets what torch reads when it loads

# isort: split
from typing import Any

from models.cuda.day_one.cases import STORE_ALL, Save, Subject, line_of, moderate, precisions
from models.fidelity.executor import state_of
from models.training.outcome import Outcome, compare, train

STEPS = 3
PLANS = (STORE_ALL, "60%", "min")


def run(small: bool, save: Save) -> None:
    """For each network and precision: which parts of the outcome of some steps of AdamW are unequal."""
    repeatable("cuda")
    rows: list[dict[str, Any]] = []
    for name, case in moderate(small).items():
        for precision in precisions(small):
            subject = Subject.of(case, precision)
            start = state_of(subject.module)

            def outcome(forward: Any, subject: Subject = subject, start: Any = start) -> Outcome:
                subject.module.load_state_dict(start)
                return train(subject.case, subject.module, subject.within(forward), STEPS, device="cuda")[1]

            row: dict[str, Any] = {"network": name, "precision": precision, "eager": {}, "plans": {}}
            rows.append(row)
            try:
                expected = outcome(subject.module)
                row["eager"] = _told(compare(outcome(subject.module), expected))
            except Exception as error:
                row["eager"] = {"error": line_of(error)}
                save({"steps": STEPS, "rows": rows})
                continue
            for budget in PLANS[:2] if small else PLANS:
                subject.module.load_state_dict(start)
                try:
                    row["plans"][budget] = _told(compare(outcome(subject.planned(budget)), expected))
                except Exception as error:
                    row["plans"][budget] = {"error": line_of(error)}
                save({"steps": STEPS, "rows": rows})


def _told(equality: Any) -> dict[str, Any]:
    return {"unequal": list(equality.unequal), "gradients_apart": equality.gradient_difference}
