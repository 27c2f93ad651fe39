"""What the names of a file's constants tell about single numbers: weights and numbers of formulas are named apart."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(
    r"(.*[./:@])?("
    r"const(ant)?s?[_@.\d]*(_output_\d+)?"  # Constant_5, Constant@1, p2o.helper.constant.2, /act/Constant_1_output_0
    r"|const_fold_opt_+\d+|const_ends\w*|const_starts\w*"  # tf2onnx
    r"|auto\.cast\.\d+|fill_constant\w*(\.tmp_\d+)?|assign_value\w*|full(_\w+)?\.tmp_\d+"  # Paddle
    r"|onnx::[A-Za-z]+_\d+|_?val_\d+|scalar_tensor\w*"  # torch
    r"|scalar_op\d+|\w+\d_scalar|scalerpreprocessor_scale"  # MXNet, Core ML
    r"|[a-z]+(_\d+)?/[xy]|\w+_recip"  # add/y, truediv_recip: numbers of Python in TensorFlow
    r")(:\d+)?",
    re.IGNORECASE,
)
"""Names that exporters give to numbers in formulas."""

_VARIABLE = re.compile(
    r".*(ReadVariableOp|FusedBatchNorm"  # TensorFlow
    r"|/(kernel|bias|gamma|beta|alpha)(:\d+)?$"  # Keras
    r"|[._][wb]_\d+$"  # Paddle, Caffe2
    r"|(^|[._/])(weights?|bias(es)?|gamma|beta)\d*$)",
    re.DOTALL,
)
"""Names that exporters give to weights."""
_MODULE_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_TAIL = re.compile(r"(_deepcopy_\d+)?[\W\d_]*$")
_LAST_WORD = re.compile(r"[A-Za-z0-9]+$")


class NamingSchemes:
    """The schemes of one file, learned from the constants that are ``weights`` and ``numbers`` by their places.

    ``by_module`` says that torch wrote the file, where initializers are named after modules.
    """

    def __init__(self, weights: Iterable[str], numbers: Iterable[str], *, by_module: bool) -> None:
        of_weights = {_word(name) for name in weights if not _NUMBER.fullmatch(name)}
        of_numbers = {_word(name) for name in numbers}
        self._weights, self._numbers = of_weights - of_numbers - {""}, of_numbers - of_weights - {""}
        self._by_module = by_module

    def is_weight(self, name: str, *, initializer: bool) -> bool | None:
        """Whether a name is one of a weight; None if it tells nothing."""
        if _NUMBER.fullmatch(name):
            return False
        if _VARIABLE.match(name) or (self._by_module and initializer and _MODULE_PATH.fullmatch(name)):
            return True
        word = _word(name)
        if word in self._weights:
            return True
        return False if word in self._numbers else None


def _word(name: str) -> str:
    """The last word of a name without its numbers: ``w`` of linear_0.w_0, ``kernel`` of dense/kernel:0."""
    found = _LAST_WORD.search(_TAIL.sub("", name))
    return found[0] if found else ""
