"""Reductions, cumulative ops, pooling over windows and regions, softmax and losses."""

from __future__ import annotations

from math import prod

from .op_call import INDEX_NBYTES, RuleCall, Saved, first_input, input_and_output, item_nbytes, nothing, table

_INT32_NBYTES = 4


def _softmax(call: RuleCall) -> Saved:
    """The result, which may be wider than the input, and if the reader says so, the one of the input's type."""
    narrow = call.integer("narrow_nbytes", 0)
    return Saved((), (0,), (narrow,) if narrow else ())


def _log_of_sum(call: RuleCall) -> Saved:
    """The logarithm saves the sum."""
    return Saved(hidden_nbytes=(call.output.nbytes,))


def product(call: RuleCall) -> Saved:
    """torch.prod over one dimension or all; over several it reduces one by one and saves the intermediate results.

    The dimensions may be an input, so they are found from the shapes; each intermediate result has at most half the
    size of the one before.
    """
    before, after = call.first, call.output
    if len(before.shape) == len(after.shape):
        reduced = sum(old != new for old, new in zip(before.shape, after.shape, strict=True))
    else:
        reduced = len(before.shape) - len(after.shape)
    steps = reduced - 1 if after.numel > 1 else 0
    return Saved((0,), (0,), tuple(before.nbytes >> step for step in range(1, steps + 1)))


def _cumulative_product(call: RuleCall) -> Saved:
    """torch.cumprod saves input and result; if it is reversed or shifted, these are copies."""
    turned = call.integer("reverse", 0) or call.integer("exclusive", 0)
    return Saved((), (), (call.first.nbytes,) * 2) if turned else Saved(inputs=(0,), outputs=(0,))


def _max_pool(call: RuleCall) -> Saved:
    """The input and the indices, which may be the op's second output."""
    if len(call.outputs) > 1:
        return Saved((0,), (1,))
    return Saved((0,), (), (call.output.numel * INDEX_NBYTES,))


def _norm_pool(call: RuleCall) -> Saved:
    """F.lp_pool saves the input, the power, its average, sign, magnitude and product."""
    return Saved((0,), (), (call.first.nbytes, *(call.output.nbytes,) * 4))


def _region_max(call: RuleCall) -> Saved:
    """torchvision's roi_pool: the regions and an int32 argmax."""
    return Saved((1,), (), (call.output.numel * _INT32_NBYTES,))


def _region_average(call: RuleCall) -> Saved:
    """torchvision's roi_align saves the regions with their batch index: five numbers each.

    It averages. A maximum is composed, and charged with what it may save: input, output and indices.
    """
    regions = call.required(1)
    rows = regions.shape[0] * 5 * item_nbytes(regions)
    if call.text("mode", "avg") == "avg":
        return Saved((), (), (rows,))
    return Saved((0, 1), (0,), (rows, call.output.numel * INDEX_NBYTES))


def _labels(call: RuleCall) -> Saved:
    """The labels, as int64, and the class weights."""
    labels = call.required(1)
    weights = call.present((2,))
    if labels.dtype == "int64":
        return Saved((1, *weights))
    return Saved(weights, (), (labels.numel * INDEX_NBYTES,))


def _negative_log_likelihood(call: RuleCall) -> Saved:
    """nll_loss saves its log-probabilities, the labels and the total weight."""
    kept = _labels(call)
    return Saved((0, *kept.inputs), (), (*kept.hidden_nbytes, item_nbytes(call.first)))


def _cross_entropy(call: RuleCall) -> Saved:
    """log_softmax, which may be the output log_prob, the class labels and the total weight.

    With class probabilities torch sums their product with log_softmax: it saves both and the class weights.
    """
    if call.required(1).is_float:
        hidden = () if len(call.outputs) > 1 else (call.first.nbytes,)
        return Saved((1, *call.present((2,))), (1,) if len(call.outputs) > 1 else (), hidden)
    kept = _labels(call)
    if len(call.outputs) > 1:
        return Saved(kept.inputs, (1,), (*kept.hidden_nbytes, item_nbytes(call.first)))
    return Saved(kept.inputs, (), (*kept.hidden_nbytes, call.first.nbytes, item_nbytes(call.first)))


def _top_values(call: RuleCall) -> Saved:
    return Saved(outputs=(1,))


def _determinant(call: RuleCall) -> Saved:
    """torch.linalg.det saves the matrix, the determinant, the LU factors and their int32 pivots."""
    matrix = call.first
    return Saved((0,), (0,), (matrix.nbytes, prod(matrix.shape[:-1]) * _INT32_NBYTES))


RULES = table(
    {
        nothing: "ReduceMean ReduceSum GlobalAveragePool",
        first_input: "AveragePool ReduceSumSquare",
        _softmax: "Softmax LogSoftmax",
        input_and_output: "ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceLogSumExp GlobalLpPool",
        product: "ReduceProd",
        _log_of_sum: "ReduceLogSum",
        _cumulative_product: "CumProd",
        _max_pool: "MaxPool GlobalMaxPool",
        _norm_pool: "LpPool",
        _region_max: "MaxRoiPool",
        _region_average: "RoiAlign",
        _negative_log_likelihood: "NegativeLogLikelihoodLoss",
        _cross_entropy: "SoftmaxCrossEntropyLoss",
        _top_values: "TopK",
        _determinant: "Det",
    }
)
