"""Steps captured as CUDA graphs: whether a planned one leaves the bits of eager's behind, and what a replay takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from models.cuda.day_one.cases import STORE_ALL, Save, Subject, line_of, moderate
from models.meters.step_meters import clear_gradients
from models.training.outcome import equal_bits

REPLAYS = 10
PLANS = (STORE_ALL, "60%")


def run(small: bool, save: Save) -> None:
    """Capture steps without random calls first: a capture that fails may end what runs after it."""
    rows: list[dict[str, Any]] = []
    cases = moderate(small)
    for name in sorted(cases, key=("unet", "resnet50", "gpt").index):
        subject = Subject.of(cases[name], "float32")
        expected: dict[str, torch.Tensor] | None = None
        for way in ("eager", *PLANS):
            row: dict[str, Any] = {"network": name, "way": way}
            rows.append(row)
            try:
                found, ms = _captured(subject, subject.module if way == "eager" else subject.planned(way))
                expected = found if way == "eager" else expected
                same = expected is not None and all(equal_bits(found[key], expected[key]) for key in expected)
                row |= {"replayed_gradients_equal": same, "replay_ms": ms}
            except Exception as error:
                row["error"] = line_of(error)
            save({"rows": rows})


def _captured(subject: Subject, forward: nn.Module) -> tuple[dict[str, torch.Tensor], float]:
    """The gradients of a replay, of the same random numbers each time, and the milliseconds that one takes."""
    step, module = subject.step(forward), subject.module
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            clear_gradients(module, subject.arguments)
            step()
    torch.cuda.current_stream().wait_stream(side)
    clear_gradients(module, subject.arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    torch.cuda.manual_seed(1)
    graph.replay()
    torch.cuda.synchronize()
    found = _gradients(module)
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started.record()
    for _ in range(REPLAYS):
        graph.replay()
    ended.record()
    torch.cuda.synchronize()
    return found, started.elapsed_time(ended) / REPLAYS


def _gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.detach().clone() for name, p in module.named_parameters() if p.grad is not None}
