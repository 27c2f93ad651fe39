"""The versions of the operator sets that a file imports, and when an op got its definition."""

from __future__ import annotations

from json import dumps as quoted

from ...errors import InvalidModelError, UnsupportedOpError
from .protobuf import ModelProto, defs
from .unsupported_ops import EXPORT_AGAIN


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
