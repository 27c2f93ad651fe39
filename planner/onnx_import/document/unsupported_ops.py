"""The ops that are refused, each with the reason and the remedy that the error message states."""

from __future__ import annotations

from dataclasses import dataclass

EXPORT_AGAIN = "export the model again"
UNROLL = "export the model with its loops unrolled"
NO_TEXT = "cut the text processing off and export what comes after it"
TENSORS = "export the model with tensors instead"
CHARGE = "pass --charge-unknown to charge all of its inputs and outputs"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why an op cannot be planned, and the remedy; ``chargeable`` if --charge-unknown accepts it."""

    reason: str
    remedy: str
    chargeable: bool = False


_LOOP = Exclusion("is a loop, and a plan needs every op of a training step written out", UNROLL)
_SEQUENCE_LOOP = Exclusion("runs its body once per tensor of a sequence, which makes it a loop", UNROLL)
_TEXT = Exclusion("works on strings, which have no size in bytes", NO_TEXT)
_OPTIONAL = Exclusion("works on an optional value, which may or may not be there when the model runs", TENSORS)
_IMAGE = Exclusion(
    "decodes a compressed image, whose size only its bytes tell", "decode the images before they enter the model"
)
_CLASSIC = Exclusion("is classical machine learning, which has no training semantics in PyTorch", CHARGE, True)
_MAP = Exclusion("makes a map or a list of maps, which is not a tensor", "cut the model before it")
_DICTIONARY = Exclusion("takes a map, which is not a tensor", "cut the model after it")
_OPTIMIZER = Exclusion(
    "is an optimizer step, which lies outside the training step that is planned",
    "cut it off, and charge the optimizer's state with --optimizer",
    True,
)
_GRADIENT = Exclusion(
    "computes a gradient inside the model; the training step is derived from the forward graph alone",
    "export the forward graph",
)
_PREVIEW = Exclusion("is a preview whose definition may still change", CHARGE, True)

EXCLUSIONS: dict[tuple[str, str], Exclusion] = {
    **dict.fromkeys((("", "Loop"), ("", "Scan")), _LOOP),
    ("", "SequenceMap"): _SEQUENCE_LOOP,
    **{("", op_type): _OPTIONAL for op_type in ("Optional", "OptionalGetElement", "OptionalHasElement")},
    **{("", op_type): _TEXT for op_type in ("StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch")},
    ("", "ImageDecoder"): _IMAGE,
    ("ai.onnx.ml", "ZipMap"): _MAP,
    **{("ai.onnx.ml", op_type): _DICTIONARY for op_type in ("CastMap", "DictVectorizer")},
    **{("ai.onnx.preview.training", op_type): _OPTIMIZER for op_type in ("Adagrad", "Adam", "Momentum")},
    ("ai.onnx.preview.training", "Gradient"): _GRADIENT,
}
DOMAINS: dict[str, Exclusion] = {
    "ai.onnx.ml": _CLASSIC,
    "ai.onnx.preview": _PREVIEW,
    "ai.onnx.preview.training": _OPTIMIZER,
    "ai.onnx.training": _OPTIMIZER,
}


def exclusion(domain: str, op_type: str) -> Exclusion | None:
    """Why ops of this type are refused, None if they are not."""
    return EXCLUSIONS.get((domain, op_type)) or DOMAINS.get(domain)
