"""Fixtures of several files."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.modules import collector

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported: one thread for each of the test processes


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each process takes a half of the tests, file by file, and at the end some of the other's: none waits for long."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_collection_finish() -> None:
    """Spare the collector all that was there before the tests."""
    collector.freeze()


@pytest.fixture
def usual_interrupts() -> Iterator[None]:
    """Python's own handler, whatever runs the tests: in the background of a shell interrupts are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def one_registry_of_onnx_functions() -> Iterator[None]:
    """`torch.onnx.export` parses the source of its 500 functions at each call, which takes longer than a small export.

    Here a process does so once.
    """
    import torch

    @functools.cache
    def keep_registry() -> None:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))

    export = torch.onnx.export

    froze = False

    def exported(*args: Any, **kwargs: Any) -> Any:
        nonlocal froze
        keep_registry()
        made = export(*args, **kwargs)
        if not froze:  # with these functions, which a collection would look through
            froze = True
            collector.freeze()
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", exported)
        yield
