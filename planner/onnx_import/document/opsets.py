"""The versions of the operator sets that a file imports, and when an op got its definition."""

from __future__ import annotations

from json import dumps as quoted

from ...errors import InvalidModelError, UnsupportedOpError
from .protobuf import IR_VERSION, ModelProto, defs
from .unsupported_ops import EXPORT_AGAIN

_WITHOUT_OPSETS = 3
"""The first IR version whose files import operator sets; those before mean opset 1."""


def check_versions(model: ModelProto, path: str) -> None:
    """Raise InvalidModelError for a file that does not say which edition of ONNX it is written in."""
    if model.ir_version < 1:
        stated = f"the IR version {model.ir_version}" if model.HasField("ir_version") else "no IR version"
        raise InvalidModelError(f"{path} states {stated}; ONNX files state 1 or more", remedy=EXPORT_AGAIN)
    if model.ir_version > IR_VERSION:
        raise InvalidModelError(
            f"{path} states the IR version {model.ir_version}; the installed onnx library knows up to {IR_VERSION}",
            remedy="install a newer onnx package, or export the model again if there is no such version",
        )
    if model.ir_version >= _WITHOUT_OPSETS and not model.opset_import:
        raise InvalidModelError(
            f"{path} imports no opset, which a file of IR version {model.ir_version} must", remedy=EXPORT_AGAIN
        )


def opset_versions(model: ModelProto) -> dict[str, int]:
    """The version of each imported operator domain that the onnx library knows; "" is the standard one."""
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise InvalidModelError(
                f"domain {quoted(domain)} is imported as {versions[domain]} and {entry.version}",
                remedy=EXPORT_AGAIN,
            )
    newest = defs.onnx_opset_version()
    if versions.setdefault("", 1) > newest:
        raise UnsupportedOpError(
            f"the model uses opset {versions['']}; the installed onnx library knows up to {newest}",
            remedy="install a newer onnx package",
        )
    if versions[""] < 1:
        raise InvalidModelError(f"the model imports opset {versions['']}", remedy=EXPORT_AGAIN)
    standard = {schema.domain for schema in defs.get_all_schemas()}
    return {domain: version for domain, version in versions.items() if domain in standard}


def since_version(op_type: str, opset: int) -> int | None:
    """The opset in which a standard op got the definition that ``opset`` uses, None where it has none."""
    try:
        return int(defs.get_schema(op_type, opset, "").since_version)
    except defs.SchemaError:
        return None
