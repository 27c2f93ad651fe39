"""What torch's exporter records on a node: the call of aten that it was written for, and the module of the call."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .protobuf import NodeProto

_RECORD = "pkg.torch.onnx.fx_node"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_TRACE = "pkg.torch.onnx.stack_trace"
_SCOPES = "pkg.torch.onnx.name_scopes"
_MAX_LENGTH, _MAX_SCOPES_LENGTH = 20_000, 10_000
_CALL = re.compile(r"%\w+ : .*?= call_function\[target=torch\.ops\.aten\.(?P<name>\w+)\.(?P<overload>\w+)\]\(args = \(")
"""How a record begins; its arguments are found without an expression, which would try every way to part them."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of aten: its record, its name, its arguments as written, whether a dropout made it, its source line."""

    text: str
    name: str
    arguments: tuple[str, ...]
    keywords: tuple[tuple[str, str], ...]
    in_dropout: bool
    line: str = ""

    @property
    def copies(self) -> bool:
        """Whether a recorded clone allocates; a dropout with rate 0 is recorded as a clone, too."""
        return self.contiguous or not self.in_dropout

    @property
    def contiguous(self) -> bool:
        """Whether a recorded clone sets a memory format, as ``contiguous()`` does."""
        return any(key == "memory_format" for key, _ in self.keywords)

    def integer(self, position: int) -> int | None:
        """A positional argument that is an integer."""
        text = self.arguments[position] if position < len(self.arguments) else ""
        return int(text) if text.isdecimal() and len(text) < 10 else None

    def tensors(self, count: int) -> tuple[str, ...]:
        """Names of the first ``count`` arguments, the last one maybe as ``attn_mask``; "" for no tensor."""
        texts = (*self.arguments[:count], *("None",) * (count - len(self.arguments)))
        if texts[-1] == "None":
            texts = (*texts[:-1], dict(self.keywords).get("attn_mask", "None"))
        return tuple(text[1:] if text.startswith("%") else "" for text in texts)

    def drops(self, position: int, keyword: str) -> bool:
        """Whether the rate of a dropout, by position or by keyword, is anything but zero."""
        text = self.arguments[position] if position < len(self.arguments) else dict(self.keywords).get(keyword, "0.0")
        return text not in ("0.0", "0")

    def truth(self, position: int, keyword: str) -> bool:
        """An argument that is True, by position or by keyword."""
        text = self.arguments[position] if position < len(self.arguments) else dict(self.keywords).get(keyword, "")
        return text == "True"


def recorded_call(node: NodeProto) -> RecordedCall | None:
    """The call of aten that a node was written for, None if no readable call is recorded."""
    text = _recorded(node, _RECORD)
    stripped = text.strip() if len(text) < _MAX_LENGTH else ""
    matched = _CALL.match(stripped)
    if matched is None or "\n" in stripped or not stripped.endswith("})"):
        return None
    given, found, named = stripped[matched.end() : -2].rpartition("), kwargs = {")
    if not found:
        return None
    keywords = tuple(
        (key.strip(), value.strip()) for key, colon, value in (entry.partition(":") for entry in _parts(named)) if colon
    )
    arguments = tuple(_parts(given))
    line = _last_line(_recorded(node, _TRACE)[-_MAX_LENGTH:])
    in_dropout = "dropout(" in line or _is_dropout(_recorded(node, _CLASSES))
    return RecordedCall(text, matched["name"], arguments, keywords, in_dropout, line)


def _recorded(node: NodeProto, key: str) -> str:
    """What is recorded on a node under a key, "" for nothing; long texts under other keys are not decoded."""
    return next((entry.value for entry in reversed(node.metadata_props) if entry.key == key), "")


def _parts(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts: list[str] = []
    depth, begin = 0, 0
    for position, letter in enumerate(text):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[begin:position].strip())
            begin = position + 1
    parts.append(text[begin:].strip())
    return [part for part in parts if part]


def _is_dropout(text: str) -> bool:
    """Whether the innermost of the recorded classes around a call is a dropout."""
    classes = _parsed_list(text) if 0 < len(text) < _MAX_LENGTH else ()
    return len(classes) > 1 and "dropout" in str(classes[-2]).lower()


@lru_cache(maxsize=64)
def _last_line(trace: str) -> str:
    """The last traced line of source."""
    return next(reversed(trace.strip().splitlines()), "")


@lru_cache(maxsize=256)
def _parsed_list(text: str) -> tuple[object, ...]:
    """The list that a text spells out; an empty one where it is damaged. Neighbours have equal texts."""
    try:
        parsed = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ()
    return tuple(parsed) if isinstance(parsed, list) else ()


def scopes_of(node: NodeProto) -> list[str]:
    """The paths of the modules around a node, outermost first, as torch's exporter recorded them."""
    if not node.metadata_props:
        return []
    scopes: Sequence[object] = []
    text = _recorded(node, _SCOPES)
    if 0 < len(text) < _MAX_SCOPES_LENGTH:
        scopes = _parsed_list(text)
    else:
        scopes = [part.split(":")[0].strip() for part in _recorded(node, "namespace").split("/")]
    return [scope for scope in scopes if isinstance(scope, str)][:-1]


def scope_of(node: NodeProto) -> str:
    """The path of the innermost module around a node, or nothing."""
    return next(reversed(scopes_of(node)), "")
