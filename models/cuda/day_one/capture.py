"""A planned step captured as a CUDA graph, and what its replay leaves behind and takes."""

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
    for name in ("unet", "resnet50", "gpt"):
        subject = Subject.of(cases[name], "float32")
        for budget in PLANS:
            row: dict[str, Any] = {"network": name, "way": budget}
            rows.append(row)
            try:
                row |= _captured(subject, subject.planned(budget))
            except Exception as error:
                row["error"] = line_of(error)
            save({"rows": rows})


def _captured(subject: Subject, bound: nn.Module) -> dict[str, Any]:
    step, module = subject.step(bound), subject.module
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            clear_gradients(module, subject.arguments)
            step()
    torch.cuda.current_stream().wait_stream(side)
    expected = _gradients(module)
    clear_gradients(module, subject.arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    found = _gradients(module)
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started.record()
    for _ in range(REPLAYS):
        graph.replay()
    ended.record()
    torch.cuda.synchronize()
    return {
        "replayed_gradients_equal": all(equal_bits(found[name], expected[name]) for name in expected),
        "random": any(isinstance(child, nn.Dropout) and child.p > 0 for child in module.modules()),
        "replay_ms": started.elapsed_time(ended) / REPLAYS,
    }


def _gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.detach().clone() for name, p in module.named_parameters() if p.grad is not None}
