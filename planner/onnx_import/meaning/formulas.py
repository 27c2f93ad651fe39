"""Formulas that nobody recorded are read as the one call of torch that exporters write so, and that saves less.

A file of PyTorch without records comes from its older exporter, which spells each call in one way. There another
spelling is what a user wrote, and stays. Other programs may spell a call as they like.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...graph import ATEN_DOMAIN
from ..document.exporter_records import RecordedCall
from ..values.layout_copies import copied_inputs
from ..values.values import Call, Value, row_major
from ..values.view_ops import mark_view
from . import formula_builders as build
from .formula_patterns import Match, Node, Pattern, makers, matches, parse, roots

_ERF = "Add(1, Erf({Div(x, 1.41421)|Mul(x, .70711)}))"
_SQUARE = "{Pow(x, 2)|Mul(x, x)}"
_CUBE = f"{{Pow(x, 3)|Mul(x, {_SQUARE})}}"
_SCALED_CUBE = f"{{Mul(.044715, {_CUBE})|Mul(x, Mul(.044715, {_SQUARE}))|Mul({_SQUARE}, Mul(.044715, x))}}"
_SUM = f"{{Mul(.79788, Add(x, {_SCALED_CUBE}))|Mul(Mul(.79788, x), Add(1, Mul(.044715, {_SQUARE})))}}"
_TANH = f"Add(1, Tanh({_SUM}))"
_TORCH_TANH = "Add(1, Tanh(Mul(.79788, Add(x, Mul(.044715, {Mul(x, Mul(x, x))|Pow(x, 3)})))))"
_HALVES = (
    "{{Mul(.5, Mul(x, {0}))|Div(Mul(x, {0}), 2)|Mul(x, {{Mul(.5, {0})|Div({0}, 2)}})"
    "|Mul({{Mul(.5, x)|Div(x, 2)}}, {0})}}"
)
_CLIP = "c:Clip(Add(x, 3))"
_SECOND = "f:Sub(x, {m|ReduceMean(x)})"
_VARIANCE = f"Add(ReduceMean({{Pow(d, 2)|Mul(d, d)|Pow({_SECOND}, 2)|Mul({_SECOND}, f)}}), e)"
_DEVIATION = f"{{Sqrt({_VARIANCE})|Pow({_VARIANCE}, .5)}}"
_DIFFERENCE = "d:Sub(x, m:ReduceMean(x))"
_FOLDED_DEVIATION = (
    f"Sqrt(Add(ReduceMean({{Pow({_DIFFERENCE}, 2)|Mul({_DIFFERENCE}, d)}}), e))"  # TensorFlow folds scale and shift in
)
_FOLDED_SCALE = f"i:Mul(g, {{Reciprocal({_FOLDED_DEVIATION})|Div(1, {_FOLDED_DEVIATION})}})"
_NORM = "{n:LayerNormalization(x)|n:GroupNormalization(x)}"
_GROUPS = "y:Reshape(i:InstanceNormalization(Reshape(x, r), o, z), s)"
_SCORES = "MatMul(Mul(q, s), Mul(k, t))"
_WEIGHTS = f"Softmax({{{_SCORES}|Add({_SCORES}, m)}})"


@dataclass(frozen=True, slots=True)
class Formula:
    """A call of torch: its patterns, what makes the call of a match, and whether the older exporter writes it so.

    ``recorded`` are the calls that the newer exporter records where it writes the formula for this one. ``trace`` has
    to be in the line of source that it records, if it records any. Without a record it is this call only if ``bare``.
    """

    name: str
    pattern: Pattern
    build: build.Build
    of_torch: bool = True
    recorded: frozenset[str] = frozenset()
    trace: str = ""
    bare: bool = True

    def suits(self, recorded: RecordedCall | None) -> bool:
        """Whether what is recorded on the last node lets it be this formula."""
        if recorded is None:
            return self.bare
        return recorded.name in self.recorded and self.trace in recorded.line


def _formula(
    name: str, text: str, make: build.Build, *, of_torch: bool = True, recorded: str = "", trace: str = "",
    bare: bool = True,
) -> Formula:  # fmt: skip
    return Formula(name, parse(text), make, of_torch, frozenset(recorded.split()), trace, bare)


FORMULAS = (
    _formula("silu", "Mul(x, Sigmoid(x))", build.of_one("Swish")),
    _formula("mish", "Mul(x, Tanh(Softplus(x)))", build.of_one("Mish")),
    _formula("gelu", "Mul(.5, Mul(x, Add(1, Erf(Div(x, 1.41421)))))", build.of_one("Gelu")),
    _formula("gelu", f"Mul(.5, Mul(x, {_TORCH_TANH}))", build.of_one("Gelu")),
    _formula("gelu", _HALVES.format(_ERF), build.of_one("Gelu"), of_torch=False),
    _formula("gelu", _HALVES.format(_TANH), build.of_one("Gelu"), of_torch=False),
    _formula("hardswish", "Mul(x, c:HardSigmoid(x))", build.hard("HardSwish")),
    _formula("hardswish", f"Mul(x, Div({_CLIP}, 6))", build.hard("HardSwish")),
    _formula(
        "hardswish",
        f"{{Div(Mul(x, {_CLIP}), 6)|Mul(Mul(x, {_CLIP}), .166667)|Mul(x, Mul({_CLIP}, .166667))}}",
        build.hard("HardSwish"),
        of_torch=False,
    ),
    _formula("hardsigmoid", f"Div({_CLIP}, 6)", build.hard("HardSigmoid")),
    _formula("hardsigmoid", f"Mul({_CLIP}, .166667)", build.hard("HardSigmoid"), of_torch=False),
    _formula("hardshrink", "Where(Or({Greater(x, l)|Cast(Greater(x, l))}, {Less(x, n)|Cast(Less(x, n))}), x, 0)",
             build.of_one("Shrink")),
    _formula("hardshrink", "Where(LessOrEqual(Abs(x), l), {0|Cast(0)}, x)", build.of_one("Shrink"), recorded="where",
             trace="hardshrink("),
    _formula("softshrink", "Add(Where(Greater(x, l), Sub(x, l), 0), Where(Less(x, n), Add(x, l), 0))",
             build.of_one("Shrink")),
    _formula("softshrink", "Where(Greater(Abs(x), l), Sub(x, Mul(Sign(x), l)), Mul(x, {0|Cast(0)}))",
             build.of_one("Shrink"), recorded="where"),
    _formula("threshold", "Where(LessOrEqual(x, t), v, x)", build.of_one("ThresholdedRelu"), recorded="where",
             trace="threshold(", bare=False),
    _formula("log_sigmoid", "Log(Sigmoid(x))", build.of_one("log_sigmoid", ATEN_DOMAIN)),
    _formula("glu", "Mul(a, Sigmoid(b))", build.gated_half),
    _formula("layer_norm", "Div(d:Sub(x, ReduceMean(x)), Sqrt(Add(ReduceMean(Pow(d, 2)), e)))", build.layer_norm),
    _formula(  # in half precision
        "layer_norm",
        "y:Cast(Div(d:Cast(Sub(x, ReduceMean(x))), Sqrt(Add(ReduceMean(Pow(d, 2)), e))))",
        build.layer_norm,
    ),
    _formula(
        "layer_norm",
        f"{{Div({_DIFFERENCE}, {_DEVIATION})|Mul({_DIFFERENCE}, {{Reciprocal({_DEVIATION})|Div(1, {_DEVIATION})}})}}",
        build.layer_norm,
        of_torch=False,
    ),
    _formula(
        "layer_norm", f"Add(Mul(x, {_FOLDED_SCALE}), Sub(b, Mul(m, i)))", build.layer_norm, of_torch=False
    ),
    _formula("group_norm", _GROUPS, build.group_norm),
    _formula("group_norm", f"Add(Mul({_GROUPS}, g), b)", build.group_norm, recorded="group_norm native_group_norm"),
    _formula("", f"Mul({_NORM}, w)", build.affine_norm(1, 1)),
    _formula("", f"Add({_NORM}, w)", build.affine_norm(2, 0)),
    _formula(
        "scaled_dot_product_attention",
        f"MatMul({{{_WEIGHTS}|Where(IsNaN(p:{_WEIGHTS}), .0, p)}}, v)",
        build.attention,
    ),
    _formula(
        "lerp",
        "Where({Less({w|Abs(w)}, .5)|c}, Add(a, Mul(w, d:Sub(b, a))), Sub(b, Mul(d, {Sub(1, w)|v})))",
        build.lerp,
        recorded="lerp",
    ),
    _formula("index_add", "y:Add(a, l:ScatterElements(z, Expand(Unsqueeze(i)), s))", build.sum_into(saves=True)),
    _formula("scatter_add", "y:Add(a, l:ScatterElements(z, i, s))", build.sum_into(saves=False)),
    _formula("index_add", "l:ScatterND(a, i, s)", build.index_put, recorded="index_put", trace="index_add", bare=False),
    _formula(
        "huber_loss",
        "Where(Less(d:Abs(Sub(x, y)), n), Mul(d, Mul(.5, d)), {Mul(n, Sub(d, h))|Sub(d, h)})",
        build.of_two("huber_loss"),
        recorded="where",
        trace="huber_loss(",
    ),
    _formula(
        "smooth_l1_loss",
        "Where(Less(d:Abs(Sub(x, y)), n), {Div(Mul(.5, Pow(d, 2)), n)|Mul(.5, Pow(d, 2))}, Sub(d, h))",
        build.of_two("smooth_l1_loss"),
        recorded="where",
        trace="smooth_l1_loss(",
    ),
    _formula("adaptive_avg_pool", "y:Div(a:Add(b, c), n)", build.adaptive_pool, recorded="div"),
)  # fmt: skip


_NEARBY = 8  # calls between two slices of one chunk, at most


class Formulas:
    """Replaces each formula by its call as soon as its last node has been read."""

    def __init__(self, readers: Mapping[str, set[int]], producer: str) -> None:
        """``readers`` has the nodes that read each value of the file, -1 for its outputs."""
        self._readers = readers
        self._gone: dict[int, Call] = {}
        self._pieces: dict[tuple[int, int], list[Call]] = {}  # (source, axis) -> slices so far
        self._found: Counter[str] = Counter()
        self._candidates_of: dict[tuple[str, frozenset[str]], list[tuple[Node, Formula]]] = {}
        self._by_root: dict[str, list[tuple[Node, Formula]]] = {}
        for formula in FORMULAS:
            if formula.of_torch or producer != "pytorch":
                for root in roots(formula.pattern):
                    self._by_root.setdefault(root.op_type, []).append((root, formula))

    def visited(self, calls: list[Call], recorded: RecordedCall | None) -> None:
        """Put the call of a formula in place of its last op, which is the last of ``calls``."""
        root = calls[-1]
        if root.domain or len(root.outputs) != 1 or not root.outputs[0].from_input:
            return
        if root.op_type == "Slice" and recorded is None:
            self._chunk(calls)
        for pattern, formula in self._candidates(root):
            if not formula.suits(recorded):
                continue
            for match in matches(pattern, root.outputs[0], Match()):
                made = formula.build(match) if self._is_whole(root, match.calls) else None
                if made is not None and self._is_whole(root, (*match.calls, *made.more)):
                    self._replace(calls, made, (*match.calls, *made.more))
                    self._found[formula.name] += 1
                    return

    def _candidates(self, root: Call) -> list[tuple[Node, Formula]]:
        """The formulas that may end with an op, by what makes its operands."""
        ending = self._by_root.get(root.op_type, [])
        if not ending:
            return ending
        made_by = makers(root)
        key = root.op_type, made_by
        if key not in self._candidates_of:
            self._candidates_of[key] = [
                (pattern, formula) for pattern, formula in ending if not any(map(made_by.isdisjoint, pattern.kinds))
            ]
        return self._candidates_of[key]

    def _is_whole(self, root: Call, matched: tuple[Call, ...]) -> bool:
        """Whether no other node reads what the calls of a formula make before its root."""
        distinct = {id(call): call for call in (root, *matched)}
        reading = Counter(key for call in distinct.values() for key in {id(value) for value in call.inputs})
        return all(
            0 < len(self._readers.get(value.name, ())) == reading[id(value)]
            for call in distinct.values()
            if call is not root
            for value in call.outputs
        )

    def _replace(self, calls: list[Call], made: build.Made, matched: tuple[Call, ...]) -> None:
        """Put a call in place of the root, and forget the others."""
        root = calls[-1]
        fused, result = made.call, root.outputs[0]
        fused.name, fused.scope, fused.outputs = root.name, root.scope, (result,)
        result.producer, result.view_of, result.strides = fused, None, row_major(result.shape)
        mark_view(fused)
        fused.copied = copied_inputs(fused)
        fused.stand_for(_in_order(calls, matched))
        self._gone.update((id(call), call) for call in matched if call is not root)
        calls[-1:] = [*made.before, fused]

    def _chunk(self, calls: list[Call]) -> None:
        """Read slices that the older exporter wrote for a chunk, whose bounds it divides and multiplies, as a Split."""
        last = calls[-1]
        source, bound = last.inputs[0], last.inputs[2] if len(last.inputs) > 2 else None
        if source is None or bound is None or not _is_multiple_of_quotient(bound):
            return
        ranges = [last.integers(name, at) for name, at in (("starts", 1), ("ends", 2), ("axes", 3))]
        if any(found is None or len(found) != 1 for found in ranges) or last.integers("steps", 4) not in (None, (1,)):
            return
        start, end, axis = (found[0] for found in ranges if found is not None)
        axis %= len(source.shape)
        pieces = self._pieces.setdefault((id(source), axis), [])
        if start == 0:
            pieces.clear()
        pieces.append(last)
        if end < source.shape[axis] or sum(piece.outputs[0].shape[axis] for piece in pieces) != source.shape[axis]:
            return
        near = range(len(calls) - 1, max(len(calls) - 1 - _NEARBY * len(pieces), -1), -1)
        position = next((at for at in near if calls[at] is pieces[0]), None)
        if position is None or len(pieces) < 2:
            return
        made = Call(pieces[0].name, "Split", "", (source,), (), {"axis": axis}, scope=last.scope, pieces=tuple(pieces))
        made.outputs = tuple(piece.outputs[0] for piece in pieces)
        for output in made.outputs:
            output.producer = made
        mark_view(made)
        calls[position] = made
        self._gone.update((id(piece), piece) for piece in pieces[1:])

    def left(self, calls: Iterable[Call]) -> list[Call]:
        """The calls that are no part of a formula."""
        return [call for call in calls if id(call) not in self._gone]

    def assumed(self) -> Iterable[str]:
        """A sentence that counts the formulas of each kind."""
        listed = ", ".join(f"{count} {name}" for name, count in sorted(self._found.items()) if name)
        if listed:
            yield f"formulas are charged as the one call of torch that they stand for: {listed}"


def _in_order(calls: list[Call], matched: tuple[Call, ...]) -> list[Call]:
    """The matched calls and the last of all, in their order."""
    wanted, found = {id(call) for call in (*matched, calls[-1])}, list[Call]()
    for call in reversed(calls):
        if id(call) in wanted:
            wanted.discard(id(call))
            found.append(call)
        if not wanted:
            break
    return found[::-1]


def _is_multiple_of_quotient(value: Value) -> bool:
    product = value.producer
    if product is None or product.op_type != "Mul":
        return False
    makers = (operand.producer for operand in product.inputs if operand is not None)
    return any(maker is not None and maker.op_type == "Div" for maker in makers)
