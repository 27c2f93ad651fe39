"""The work of calls and kernels: floating-point operations, bytes moved, and nanoseconds to compare candidates by."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx
from torch.utils.flop_counter import flop_registry

from .torch_private import pytree

_FLOPS_PER_NS = 50.0
_BYTES_PER_NS = 6.0
_LAUNCH_NS = 3_000
_DRAW_FLOPS = 500
"""Rates of a CPU core; Inductor draws numbers one by one. They rank candidates; no time is promised."""

_FUNCTIONS = frozenset(
    "acos acosh asin asinh atan atan2 atanh cos cosh digamma erf erfc erfinv exp exp2 expm1 lgamma log log10 log1p log2"
    " pow sigmoid sin sinh tan tanh".split()
)

_SUMS = frozenset("cumprod cumsum linalg_vector_norm logsumexp mean norm prod std std_mean sum var var_mean".split())


def node_flops(node: fx.Node) -> int:
    """Floating-point operations of a call, as torch counts them: 0 for all but products, convolutions and attention."""
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if node.op != "call_function" or count is None:
        return 0

    def described(leaf: object) -> object:
        return leaf.meta["val"] if isinstance(leaf, fx.Node) else leaf

    args, kwargs, made = pytree.tree_map(described, (tuple(node.args), dict(node.kwargs), node.meta["val"]))
    return int(count(*args, **kwargs, out_val=made))


def draws_from_seed(node: fx.Node) -> bool:
    """Whether a call draws random numbers from a seed, so that a second run draws the same."""
    return _name(node) in ("inductor_random", "inductor_randint")


def node_work(node: fx.Node) -> int:
    """Floating-point operations of a call, and those that take as long as what it draws."""
    return node_flops(node) + (_DRAW_FLOPS * node.meta["val"].numel() if draws_from_seed(node) else 0)


def rounds(node: fx.Node) -> bool:
    """Whether a call has two implementations, for vectors and for scalars, whose last bits differ."""
    return _name(node) in _FUNCTIONS


def sums(node: fx.Node) -> bool:
    """Whether a call sums or multiplies up: its last bits depend on the loops, their vectors and their threads."""
    return _name(node) in _SUMS


def kernel_ns(nbytes: int, nodes: Iterable[fx.Node]) -> int:
    """Nanoseconds of a kernel that moves so many bytes and computes these nodes."""
    return int(sum(map(node_work, nodes)) / _FLOPS_PER_NS + nbytes / _BYTES_PER_NS) + _LAUNCH_NS


def _name(node: fx.Node) -> str:
    return getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
