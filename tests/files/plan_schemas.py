"""The schemas of the plan file, by version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
from ogc_plan.planner.plan_file import writer as plan_writer
from ogc_plan.planner.plan_file.form import SCHEMAS
from referencing import Registry, Resource

PATHS = [Path(plan_writer.__file__).with_name(name) for name in SCHEMAS]
SCHEMA_1, SCHEMA_2 = (json.loads(path.read_text(encoding="utf-8")) for path in PATHS)
_REGISTRY: Any = Registry().with_resource("plan.schema.json", Resource.from_contents(SCHEMA_1))


def errors_of_schema(document: Any) -> list[str]:
    """What the schema of the document's version says of it."""
    schema = SCHEMA_1 if document.get("version") == 1 else SCHEMA_2
    return [e.message for e in jsonschema.Draft202012Validator(schema, registry=_REGISTRY).iter_errors(document)]
