"""The equation of an Einsum, and the contraction of its operands in pairs from the left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod


def _labels(term: str, rank: int) -> list[str] | None:
    """One label per dimension, with those of an ellipsis numbered from the right; None if the term does not fit."""
    before, dots, after = term.partition("...")
    hidden = rank - len(before) - len(after) if dots else 0
    labels = [*before, *(f".{hidden - position}" for position in range(hidden)), *after]
    return labels if len(labels) == rank else None


def contractions(equation: str, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, int, int]]:
    """(right operand, floating-point operations, elements of the result) of every product of a pair.

    The left operand is the first one or the result so far. A dimension that nothing later needs is summed in the
    product, or before it if only one side has it. There are no pairs for an equation that does not fit.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        return []
    operands: list[list[str]] = []
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        labels = _labels(term, len(shape))
        if labels is None:
            return []
        operands.append(labels)
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label]
    hidden = {label for label in sizes if label.startswith(".")}
    if arrow:
        before, dots, after = right.partition("...")
        kept = {*before, *after} | (hidden if dots else set())
    else:
        counts = Counter(label for labels in operands for label in labels)
        kept = {label for label, count in counts.items() if count == 1} | hidden
    pairs = []
    current = set(operands[0])
    for position in range(1, len(operands)):
        other = set(operands[position])
        later = kept.union(*operands[position + 1 :])
        shared = (current & other) - later
        current, other = current & (other | later), other & (current | later)
        flops = (2 if shared else 1) * prod(sizes[label] for label in current | other)
        current = (current | other) & later
        pairs.append((position, flops, prod(sizes[label] for label in current)))
    return pairs


def copies_nothing(equation: str, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether two operands, and the result's gradient, are those of a batched product as they lie in memory.

    torch joins the dimensions that have the same part in the product: in both operands, in one, or summed. Those that
    are joined have to be neighbours already, in the order of the result or, if summed, of the alphabet.
    """
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != 2 or "." in equation or any(len(set(term)) < len(term) for term in (*terms, right)):
        return False
    sizes = {
        label: size for term, shape in zip(terms, shapes, strict=True) for label, size in zip(term, shape, strict=True)
    }
    parts: dict[tuple[bool, ...], str] = {}
    for label in right + "".join(sorted(set(terms[0] + terms[1]) - set(right))):
        if sizes[label] > 1:
            part = tuple(label in term for term in (*terms, right))
            parts[part] = parts.get(part, "") + label
    lying = ["".join(label for label in term if sizes[label] > 1) for term in (*terms, right)]
    return all(labels in term for part, labels in parts.items() for has, term in zip(part, lying, strict=True) if has)
