"""What the schema of the plan file asks for beyond the types of keys: no unknown keys, and texts of a form."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import PlanFormatError

SCHEMAS = ("plan.schema.json", "plan.v2.schema.json")


def check_form(data: dict[str, Any], remedy: str) -> None:
    """Raise PlanFormatError for a key that the schema does not know, and for a text that has not the form it asks for.

    Values of another type than the schema's are left to the reader, and so are missing keys.
    """
    _check(data, _schema(data["version"]), "plan", remedy)


@cache
def _schema(version: int) -> dict[str, Any]:
    """The schema of version 1, with the keys that version 2 adds to it."""
    first, second = (json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8")) for name in SCHEMAS)
    added = {key: value for key, value in second["properties"].items() if "$ref" not in value}
    return {**first, "properties": {**first["properties"], **added}} if version > 1 else first


def _check(value: Any, schema: dict[str, Any], where: str, remedy: str) -> None:
    if isinstance(value, dict):
        schema = next((one for one in schema.get("anyOf", ()) if one.get("type") == "object"), schema)
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        unknown = value.keys() - known.keys() if others is False else ()
        if unknown:
            raise PlanFormatError(f"{where}: key {min(unknown)!r} is unknown", remedy=remedy)
        for key, inner in known.items():
            if key in value:
                _check(value[key], inner, f"{where}.{key}", remedy)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict) and "properties" in schema["items"]:
        for position, entry in enumerate(value):
            _check(entry, schema["items"], f"{where}[{position}]", remedy)
    elif isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        above, _, key = where.rpartition(".")
        raise PlanFormatError(f"{above}: key {key!r} has the impossible value {value[:40]!r}", remedy=remedy)
