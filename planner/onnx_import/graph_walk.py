"""One pass over the nodes of a file, which gives every value a static shape and every node its call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted

from ..errors import InvalidModelError, OgcPlanError, UnsupportedOpError
from ..graph import NodePath
from .document.exporter_records import scope_of
from .document.protobuf import GraphProto, NodeProto, dtype_name
from .document.subgraphs import constant_names, renamed, subgraphs
from .document.topological_order import NodeOrder
from .document.unsupported_ops import exclusion
from .meaning.sequence_ops import Sequences
from .shapes.data_dependent_shapes import DataShapes
from .shapes.declared_types import DeclaredTypes
from .shapes.element_types import bool_operand
from .shapes.rebatch import Rebatch
from .shapes.runtime_ops import runtime_shape
from .shapes.shape_inference import ShapeRules
from .values.consistency import REMEDY
from .values.constant_folding import Array, attributes_of, compute, constant_tensor, measured
from .values.initializers import enter_leaves, leaf
from .values.value_table import ValueTable
from .values.values import Call, Inferred, Value, inputs_behind

_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


class Walk:
    """Reads nodes in topological order; ``table`` grows from inputs and constants to every value of the file."""

    def __init__(
        self,
        rules: ShapeRules,
        table: ValueTable,
        declared: DeclaredTypes,
        data_shapes: DataShapes,
        rebatch: Rebatch,
        opset: int,
        *,
        charge_unknown: bool,
    ) -> None:
        self.inference_form: list[Call] = []
        self.charged: list[Call] = []
        self.cast_operands: list[tuple[Call, str]] = []
        self.table = table
        self._sequences = Sequences(table)
        self.rules = rules
        self.declared = declared
        self.data_shapes = data_shapes
        self.rebatch = rebatch
        self._opset = opset
        self._charge_unknown = charge_unknown
        self._computed: dict[object, list[Array]] = {}
        self._absent: set[str] = set()  # the names given to outputs that the file leaves out

    def visit(self, node: NodeProto, name: str, at: NodePath, *, speculative: bool) -> None:
        """Read one node, at its place ``at`` in the file, whose inputs have all been read.

        The error of a ``speculative`` node is raised only if another node reads its outputs.
        """
        self.table.node = at
        try:
            self._visit(node, name, speculative)
        except OgcPlanError as error:
            if not speculative:
                raise
            self.table.refused.update(dict.fromkeys(node.output, error))

    def _visit(self, node: NodeProto, name: str, speculative: bool) -> None:
        if node.domain == "ai.onnx":
            copy = type(node)()
            copy.CopyFrom(node)
            copy.domain, node = "", copy
        where = f"node {quoted(name)} ({_shown(node.op_type)})"
        if node.op_type == "If" and not node.domain:
            self._if(node, name, where, speculative)
            return
        excluded = exclusion(node.domain, node.op_type)
        if excluded is not None and not (self._charge_unknown and excluded.chargeable):
            raise UnsupportedOpError(f"{where} {excluded.reason}", remedy=excluded.remedy)
        if subgraphs(node):
            raise UnsupportedOpError(
                f"{where} carries a graph of its own, which runs as the op pleases",
                remedy="export the model without it",
            )
        if self._charge_unknown and (excluded is not None or self.rules.find_schema(node) is None):
            self._charge(node, name, where)
            return
        self.rules.check_node(node, where)
        if node.op_type == "Constant" and not node.domain:
            made = leaf(self.table, node.output[0], constant_tensor(node, where), where)
            self.rebatch.enter_constants([made])
            return
        self.rebatch.refuse_split(node, self.table.values.get(node.input[0]) if node.input else None, where)
        if not self._sequences.read(node, name, where):
            self._tensor_node(node, name, where)

    # --- If ---------------------------------------------------------------------------------------

    def _if(self, node: NodeProto, name: str, where: str, speculative: bool) -> None:
        """Read the nodes of the branch that the condition takes, in place of the If."""
        branch, graph = self._taken_branch(node, where)
        at = (*self.table.node, branch)
        order = NodeOrder(graph, self.table)
        outputs = list(zip((output.name for output in graph.output), node.output, strict=True))
        names: dict[str, str] = {}
        for inner, outer in outputs:
            if order.made.get(inner, -1) >= 0 and outer:
                names.setdefault(inner, outer)
        made = [value for value, maker in order.made.items() if maker >= 0]
        for value in (*made, *sorted(constant_names(graph))):
            if value not in names:
                names[value] = self.table.fresh(value)
        self.table.used.update(names.get(value, value) for value in order.used)
        enter_leaves(self.table, graph, names)
        self.declared.add(graph, names)
        for index, inner_node in zip(order.live, renamed((order.nodes[i] for i in order.live), names), strict=True):
            inner_name = self.table.call_name(order.names[index], name)
            self.visit(inner_node, inner_name, (*at, index), speculative=speculative or index in order.speculative)
        for inner, outer in outputs:
            if outer and names.get(inner, inner) != outer:
                self._pass_on(names.get(inner, inner), outer, at[:-1], where)

    def _taken_branch(self, node: NodeProto, where: str) -> tuple[str, GraphProto]:
        if len(node.input) != 1 or not node.input[0]:
            raise InvalidModelError(f"{where} has {len(node.input)} inputs; one condition is needed", remedy=REMEDY)
        condition = self.table.get(node.input[0], where)
        if condition.known is None or condition.known.size != 1:
            behind = " and ".join(f"input {quoted(name)}" for name in inputs_behind(condition)[:2])
            kind = "is an input of the model" if condition.is_input else f"depends on {behind or 'data'}"
            raise UnsupportedOpError(
                f"{where}: its condition {quoted(node.input[0])} {kind}", remedy="export the model for one branch only"
            )
        wanted = "then_branch" if condition.known.ravel()[0] else "else_branch"
        graphs = [attribute.g for attribute in node.attribute if attribute.name == wanted and attribute.HasField("g")]
        if len(graphs) != 1 or graphs[0].input or len(graphs[0].output) != len(node.output):
            raise InvalidModelError(f"{where} has no {wanted} that makes its outputs", remedy=REMEDY)
        return wanted, graphs[0]

    def _pass_on(self, inner: str, outer: str, at: NodePath, where: str) -> None:
        """Make an output of an If whose branch returns a value from outside, or one value twice."""
        self.table.raise_refusal(inner)
        if inner in self.table.sequences:
            self.table.sequences[outer] = self.table.sequences[inner]
            return
        source = self.table.get(inner, where)
        output = self.table.make(outer, source.dtype, source.shape, where)
        output.known = source.known
        self.table.derive("Identity", [source], output, where)
        self.table.calls[-1].node = at

    # --- ops that the library does not know ---------------------------------------------------------

    def _charge(self, node: NodeProto, name: str, where: str) -> None:
        """Read an op by what the file declares of its outputs; its backward is charged with all inputs and outputs."""
        node = self._with_named_outputs(node)
        call = Call(name, node.op_type, node.domain, self.table.inputs(node.input, where), scope=scope_of(node))
        call.attributes = attributes_of(node)
        call.deterministic, call.charged = False, True
        batched = any(value is not None and value.from_input for value in call.inputs)
        schema = self.rules.find_schema(node)
        inferred: Mapping[str, Inferred] = {}
        if schema is not None and schema.has_type_and_shape_inference_function:
            inferred = self.rules.infer(node, call, {}, where)
        outputs: dict[str, Inferred] = {}
        for output in node.output:
            if output in self._absent:
                outputs[output] = Inferred("float32", None)
            elif output in inferred and inferred[output].shape is not None:
                outputs[output] = inferred[output]
            else:
                number = self.declared.element_type(output)
                if number:
                    dtype = dtype_name(number, f"{where}, output {quoted(output)},")
                else:
                    dtype = self.declared.guess(output, call, where)
                dims = None if self.data_shapes.given(output) else self.declared.dims(output, batched=batched)
                if dims is None and not self.data_shapes.given(output) and output == node.output[0]:
                    dims = runtime_shape(call)
                outputs[output] = Inferred(dtype, dims)
        self.charged.append(call)
        self._finish(node, call, outputs, where)

    # --- every other node -----------------------------------------------------------------------------

    def _tensor_node(self, node: NodeProto, name: str, where: str) -> None:
        node = self._normalised(node, where)
        call = Call(name, node.op_type, node.domain, self.table.inputs(node.input, where), scope=scope_of(node))
        call.attributes = attributes_of(node)
        self._cast_bool(node, call, where)
        call.deterministic = bool(node.domain) or node.op_type not in (_RANDOM | {"Dropout"})
        if node.op_type == "Dropout" and not node.domain:
            self._dropout(node, call, where)
        elif (
            node.op_type == "BatchNormalization"
            and not node.domain
            and _is_inference_batch_norm(node, call, self._opset)
        ):
            self.inference_form.append(call)
        node, known = self.rebatch.apply(node, call)
        call.replaced = call.replaced or known
        inferred = self.rules.infer(node, call, known, where)
        self._finish(node, call, inferred, where)

    def _cast_bool(self, node: NodeProto, call: Call, where: str) -> None:
        """Insert the Cast that an exporter left out before arithmetic on a bool."""
        found = bool_operand(call)
        if found is None:
            return
        position, dtype = found
        mask = call.inputs[position]
        assert mask is not None
        floats = self.table.make(self.table.fresh(f"{mask.name} as {dtype}"), dtype, mask.shape, where)
        self.table.derive("Cast", [mask], floats, where, to=self.rules.number(dtype))
        call.inputs = tuple(floats if at == position else value for at, value in enumerate(call.inputs))
        node.input[position] = floats.name
        self.cast_operands.append((call, dtype))

    def _normalised(self, node: NodeProto, where: str) -> NodeProto:
        """A copy in which CastLike is a Cast and every output has a name."""
        copy = self._with_named_outputs(node)
        if node.op_type == "CastLike" and not node.domain:
            like = self.table.inputs(node.input, where)[1]
            assert like is not None  # `check_node` has seen to it
            copy.op_type = "Cast"
            del copy.input[1:]
            copy.attribute.append(self.rules.integer_attribute("to", self.rules.number(like.dtype)))
        if node.op_type == "BatchNormalization" and self._opset >= 14:
            missing = 3 - len(node.output) if attributes_of(node).get("training_mode", 0) else 0
            copy.output.extend(self.table.fresh(f"{node.output[0]}#{3 - missing + i}") for i in range(missing))
        return copy

    def _with_named_outputs(self, node: NodeProto) -> NodeProto:
        copy = type(node)()
        copy.CopyFrom(node)
        for position, output in enumerate(copy.output):
            if not output:
                copy.output[position] = self.table.fresh(f"{node.output[0] or node.output[-1]}#{position}")
                self._absent.add(copy.output[position])
        return copy

    def _used_outputs(self, node: NodeProto, where: str) -> int:
        """The number of outputs without the unused optional ones at the end."""
        count = len(node.output)
        if count == 1 or self.rules.find_schema(node) is None:
            return count
        optional = self.rules.optional_outputs(node, where)
        while count > 1 and optional[min(count, len(optional)) - 1] and node.output[count - 1] not in self.table.used:
            count -= 1
        return count

    def _dropout(self, node: NodeProto, call: Call, where: str) -> None:
        """Read a Dropout that drops nothing as an Identity; charge any other one as in training."""
        ratio = call.known(1)
        dropped = float(ratio.ravel()[0]) if ratio is not None and ratio.size else call.attributes.get("ratio", 0.5)
        if dropped == 0 and self._used_outputs(node, where) == 1:
            node.op_type = call.op_type = "Identity"
            del node.input[1:]
            del node.output[1:]
            del node.attribute[:]
            call.inputs, call.attributes, call.deterministic = call.inputs[:1], {}, True
            return
        training = call.known(2)
        if self._opset >= 7 and (training is None or not training.any()):
            self.inference_form.append(call)

    def _finish(self, node: NodeProto, call: Call, inferred: Mapping[str, Inferred], where: str) -> None:
        """Make the outputs of a call, with their values if they can be computed, and enter the call."""
        arrays: list[Array] | None = None
        if not call.domain and call.op_type in ("Shape", "Size"):
            arrays = [measured(call)]
        elif call.deterministic and not self.table.full:
            arrays = compute(node, call, inferred, self.rules.opsets, where, self._computed)
        outputs: list[Value] = []
        for position, name in enumerate(node.output[: self._used_outputs(node, where)]):
            array = arrays[position] if arrays is not None else None
            first = outputs[0].shape if outputs and not call.charged else (0,)
            value = self._output(name, inferred[name], array, call, first, where)
            if array is not None and array.shape == value.shape:
                self.table.keep_values(value, array)
            outputs.append(value)
        call.outputs = tuple(outputs)
        if call.op_type == "ConstantOfShape" and not call.domain and all(v.from_file for v in call.data_inputs):
            outputs[0].is_leaf = outputs[0].from_file = True
            outputs[0].source = call
            filler = call.attributes.get("value", (0,))
            outputs[0].zeros = isinstance(filler, tuple) and not any(filler)
            return
        self.table.add(call, where)

    def _output(
        self, name: str, inferred: Inferred, array: Array | None, call: Call, absent: tuple[int, ...], where: str
    ) -> Value:
        shape = inferred.shape
        if shape is None and array is not None:
            shape = array.shape
        if shape is None and name in self._absent:
            shape = absent  # the file leaves this output out, so that no user can bind it
        if shape is None:
            reason = "is not declared by the file" if call.charged else "depends on data"
            like = next((value.shape for value in call.data_inputs if value.is_float), ())
            made = self.rules.origin(call.domain) if call.charged else None
            shape = self.data_shapes.bind(name, inferred.dims, where, reason, like, made[1] if made else "")
        return self.table.make(name, inferred.dtype, shape, where)


@lru_cache(maxsize=512)
def _shown(op_type: str) -> str:
    return quoted(op_type)[1:-1]


def _is_inference_batch_norm(node: NodeProto, call: Call, opset: int) -> bool:
    if opset >= 14:
        return not call.attributes.get("training_mode", 0)
    return len(node.output) == 1 if opset >= 7 else bool(call.attributes.get("is_test", 0))
