"""Kernels are ordered and fused so that few bytes are alive."""

from __future__ import annotations

import pytest
from ogc_plan.adapters.inductor.order import Kernel, Order

NBYTES = {"saved": 10, "a": 40, "b": 40, "sum a": 1, "sum b": 1}


def kernel(name: str, reads: set[str], writes: set[str], *after: str, library: bool = False) -> Kernel:
    over = frozenset() if library else frozenset(reads)
    return Kernel(name, frozenset(reads), frozenset(writes), over, frozenset(after), library)


def two_values(*, library: bool = False) -> Order:
    """Two large values are made of a small one, and each is summed."""
    kernels = (
        kernel("make a", {"saved"}, {"a"}),
        kernel("make b", {"saved"}, {"b"}),
        kernel("sum a", {"a"}, {"sum a"}, "make a", library=library),
        kernel("sum b", {"b"}, {"sum b"}, "make b", library=library),
    )
    return Order(kernels, NBYTES, {"saved"}, {"sum a", "sum b"})


def test_a_value_is_made_when_it_is_read() -> None:
    assert two_values().peak_nbytes == 10 + 40 + 1


def test_a_fusion_that_makes_two_values_at_once_holds_both() -> None:
    found = two_values().fusion("make a", "make b")
    assert found is not None
    assert found[1].peak_nbytes - found[0].peak_nbytes == 40 - 1


def test_a_fusion_with_the_only_reader_leaves_the_value_inside_of_the_kernel() -> None:
    order = two_values()
    order.fuse("make a", "sum a")
    order.fuse("make b", "sum b")
    assert order.peak_nbytes == 10 + 1 + 1


def test_kernels_between_which_another_runs_are_not_fused() -> None:
    kernels = kernel("first", set(), {"a"}), kernel("call", {"a"}, {"b"}, "first"), kernel("last", {"b"}, set(), "call")
    assert Order(kernels, NBYTES, set(), set()).fusion("first", "last") is None


@pytest.mark.parametrize(("library", "expected"), [(False, 40), (True, 80)], ids=["loop", "library call"])
def test_only_a_loop_writes_over_what_it_reads_last(*, library: bool, expected: int) -> None:
    kernels = [kernel("one", {"a"}, {"b"}, library=library)]
    assert Order(kernels, NBYTES, {"a"}, {"b"}).peak_nbytes == expected


def test_a_loop_writes_over_nothing_that_another_loop_fused_with_it_reads() -> None:
    order = Order([kernel("one", {"a"}, {"b"}), kernel("other", {"a"}, {"sum a"})], NBYTES, {"a"}, {"b", "sum a"})
    order.fuse("one", "other")
    assert order.peak_nbytes == 40 + 40 + 1


def test_a_kernel_moves_to_the_call_that_reads_what_it_makes() -> None:
    """A large value that is read last is made last; what ends with its only reader is read at once."""
    kernels = (
        kernel("make b", {"saved"}, {"b"}),
        kernel("sum a", {"a"}, {"sum a"}),
        kernel("sum b", {"b"}, {"sum b"}, "make b", "sum a"),
    )
    order = Order(kernels, NBYTES, {"a", "saved"}, {"sum a", "sum b"})
    order.improve()
    assert [next(iter(task.names)) for task in order.tasks] == ["sum a", "make b", "sum b"]


@pytest.mark.parametrize(("made", "expected"), [("b", {"reads a"}), ("sum b", set())], ids=["large", "small"])
def test_loops_are_parted_only_where_what_has_ended_would_raise_the_peak(made: str, expected: set[str]) -> None:
    kernels = kernel("reads a", {"a"}, {"sum a"}), kernel("makes", {"sum a"}, {made}, "reads a")
    assert Order(kernels, NBYTES, {"a"}, {made}).late() == expected
