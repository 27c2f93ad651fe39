"""What an adapter wrote into a file: its annotations, checked against the nodes that they speak of."""

from __future__ import annotations

from dataclasses import dataclass
from json import dumps as quoted

from ...annotations import MODEL_KEY, NODE_KEY, REMEDY, Annotation, loads
from ...errors import InvalidModelError
from .opsets import opset_versions
from .protobuf import ModelProto


@dataclass(frozen=True, slots=True)
class AnnotatedPart:
    """The annotation of a file, who wrote the file, and with which opset."""

    annotation: Annotation
    producer: str
    opset: int


def annotated_part(model: ModelProto) -> AnnotatedPart | None:
    """The annotations of a file, None where it has none.

    Raises InvalidModelError for annotations that are damaged or do not belong to the file's nodes.
    """
    texts = [entry.value for entry in model.metadata_props if entry.key == MODEL_KEY]
    if not texts:
        return None
    if len(texts) > 1:
        raise InvalidModelError(f"the file holds {len(texts)} annotations", remedy=REMEDY)
    annotation = loads(texts[0])
    known = {op.name for op in annotation.graph.ops}
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        for entry in node.metadata_props:
            if entry.key == NODE_KEY and entry.value not in known:
                raise InvalidModelError(
                    f"node {quoted(node.name)} belongs to the op {quoted(entry.value)}, which is not among the "
                    "annotations: the file was changed after its export",
                    remedy=REMEDY,
                )
    return AnnotatedPart(annotation, producer_of(model), opset_versions(model)[""])


def producer_of(model: ModelProto) -> str:
    """The name and version of the program that wrote a file."""
    return f"{model.producer_name} {model.producer_version}".strip()
