"""Ops that move elements: views, concatenation, padding, resizing, gathering and scattering."""

from __future__ import annotations

from math import prod

from .op_call import FLOAT_NBYTES, INDEX_NBYTES, RuleCall, Saved, both_inputs, nothing, table


def _indices(call: RuleCall) -> Saved:
    """torch.index_select, embedding and x[indices] save the indices as they are."""
    return Saved(inputs=(1,))


def _elementwise_indices(call: RuleCall) -> Saved:
    """torch.gather and torch.scatter take int64 and save a converted copy of other indices."""
    indices = call.required(1)
    return Saved(inputs=(1,)) if indices.dtype == "int64" else Saved((), (), (indices.numel * INDEX_NBYTES,))


def _gather_elements(call: RuleCall) -> Saved:
    """torch.gather saves its input too, for its shape."""
    kept = _elementwise_indices(call)
    return Saved((0, *kept.inputs), (), kept.hidden_nbytes)


def _updates(call: RuleCall) -> tuple[int, ...]:
    """The updates, where the reader says that they are those of an index_add."""
    return (2,) if call.integer("saves_updates", 0) and call.needed(2) else ()


def _scatter_elements(call: RuleCall) -> Saved:
    """torch.scatter, scatter_add, scatter_reduce, which saves everything, or index_add, which saves its updates."""
    kept, reduction = _elementwise_indices(call), call.text("reduction", "none")
    if reduction == "none":
        return kept
    if reduction == "add":
        return Saved((*kept.inputs, *_updates(call)), (), kept.hidden_nbytes) if call.needed(2) else Saved()
    return Saved((0, *kept.inputs, 2), (0,), kept.hidden_nbytes)


def _scatter_blocks(call: RuleCall) -> Saved:
    """index_put; with mul, min or max an index_reduce over the flattened leading dimensions."""
    if call.text("reduction", "none") in ("none", "add"):
        return Saved(inputs=(1, *_updates(call)))
    indices = call.required(1)
    if indices.shape[-1] == 1:
        return Saved((0, 1, 2), (0,))
    return Saved((0, 2), (0,), (prod(indices.shape[:-1]) * INDEX_NBYTES,))


def _write_cache(call: RuleCall) -> Saved:
    """torch.scatter along the sequence at write_indices + arange; without write_indices a copy into a slice."""
    if not call.has(2):
        return Saved()
    update = call.required(1)
    return Saved(hidden_nbytes=(update.shape[0] * update.shape[call.integer("axis", -2)] * INDEX_NBYTES,))


def _reverse_sequence(call: RuleCall) -> Saved:
    """x[times, rows], as torch has no call for it: times [T, N] and rows [N] are saved."""
    batch, time = (call.first.shape[call.integer(name, default)] for name, default in _SEQUENCE_AXES)
    return Saved(hidden_nbytes=(time * batch * INDEX_NBYTES, batch * INDEX_NBYTES))


_SEQUENCE_AXES = (("batch_axis", 1), ("time_axis", 0))


def _pad(call: RuleCall) -> Saved:
    """reflection_pad and replication_pad save their input, for its shape; a circular one copies."""
    return Saved(inputs=(0,)) if call.text("mode", "constant") in ("reflect", "edge") else Saved()


def _resize(call: RuleCall) -> Saved:
    """F.interpolate saves nothing; with cropping it samples at a grid of points, as F.grid_sample does."""
    if call.text("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize":
        return Saved()
    shape = call.output.shape
    return Saved((0,), (), (shape[0] * prod(shape[2:]) * max(len(shape) - 2, 1) * FLOAT_NBYTES,))


RULES = table(
    {
        nothing: "Reshape Flatten Squeeze Unsqueeze Transpose Concat Slice Split Expand Tile DepthToSpace SpaceToDepth"
        " Trilu CumSum CenterCropPad Col2Im AffineGrid",
        _indices: "Gather GatherND Compress MaxUnpool",
        _gather_elements: "GatherElements",
        _scatter_elements: "ScatterElements Scatter",
        _scatter_blocks: "ScatterND",
        _write_cache: "TensorScatter",
        _reverse_sequence: "ReverseSequence",
        _pad: "Pad",
        _resize: "Resize Upsample",
        both_inputs: "GridSample",
    }
)
