"""Computes at compile time what depends on constants and weights only, and folds per-channel scales into
convolutions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mlc.dialects import dims, reference
from mlc.dialects.build import attrs_of, definition_of, loop_marker, operands_of, type_of
from mlc.dialects.builder import SMALL_CONSTANT_ELEMENTS, OpBuilder, Value
from mlc.dialects.weights import WeightStore, store_of
from mlir import ir

from .base import Pass
from .dce import drop_dead
from .neutral import without_neutral
from .rewriting import body_of, functions, mlc_ops, replace_op, users_of

# Growing a constant (broadcast, iota, one-hot) past this would trade arithmetic for artifact bytes. Masks and tables of
# rotary embeddings of some hundred positions stay below.
_LARGEST_GROWTH_BYTES = 256 * 1024
# Sources of known values that are no bytes anywhere: computed where they are read, until something on them folds.
_COMPUTED_SOURCES = ("mlc.full", "mlc.iota")


# Constants already, or what a run computes anew though its operand is constant.
_NEVER = ("constant", "weight", "random_uniform", "read_size")


def constant_source(value: ir.Value) -> ir.Operation | None:
    """The constant or weight that `value` is, if it is one."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name not in ("mlc.constant", "mlc.weight"):
        return None
    return owner.operation


def array_of(value: ir.Value, store: WeightStore) -> np.ndarray:
    source = constant_source(value)
    assert source is not None
    attrs = attrs_of(source)
    return store.get(attrs["name"]) if source.name == "mlc.weight" else attrs["value"]


def _is_symbolic(value: object) -> bool:
    return isinstance(value, dims.Dim) or (isinstance(value, list) and any(isinstance(v, dims.Dim) for v in value))


def _is_known(value: ir.Value) -> bool:
    """A constant, a weight, or a computed source of static size."""
    if constant_source(value) is not None:
        return True
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name not in _COMPUTED_SOURCES:
        return False
    return type_of(value).is_static and not any(_is_symbolic(v) for v in attrs_of(owner.operation).values())


def _known_array(value: ir.Value, store: WeightStore, module: ir.Module) -> np.ndarray:
    if constant_source(value) is not None:
        return array_of(value, store)
    return reference.run_op(value.owner.operation, [], {}, module)[0]


def _foldable(operation: ir.Operation) -> bool:
    operands = list(operation.operands)
    if not all(map(_is_known, operands)):  # first, since it settles most ops at no cost
        return False
    if definition_of(operation).name in _NEVER or loop_marker(operation) is not None:
        return False
    results = [type_of(r) for r in operation.results]
    if not all(r.is_static for r in results) or any(_is_symbolic(v) for v in attrs_of(operation).values()):
        return False
    if not operands:  # full, iota, dim_value: small ones help others fold; large ones are cheaper computed
        return sum(r.elements for r in results) <= SMALL_CONSTANT_ELEMENTS
    stored = sum(type_of(v).bytes for v in operands if constant_source(v) is not None)
    return sum(r.bytes for r in results) <= max(stored, _LARGEST_GROWTH_BYTES)


def _evaluate(operation: ir.Operation, store: WeightStore, module: ir.Module) -> list[np.ndarray]:
    def read(value: ir.Value) -> np.ndarray:
        return _known_array(value, store, module)

    inputs = [
        [read(v) for v in o] if isinstance(o, list) else (None if o is None else read(o))
        for o in operands_of(operation)
    ]
    return reference.run_op(operation, inputs, {}, module)


def make_constant(builder: OpBuilder, store: WeightStore, name: str, array: np.ndarray) -> Value:
    """A constant op when small, else a weight, or `full` where all elements are one number."""
    if array.size <= SMALL_CONSTANT_ELEMENTS:
        return builder.constant(array)
    from mlc.dialects.types import dtype_of_numpy

    if _is_uniform(array):
        return builder.full(shape=list(array.shape), value=float(array.flat[0]), dtype=dtype_of_numpy(array.dtype))
    stored = store.add(name, np.ascontiguousarray(array))
    return builder.weight(name=stored, shape=list(array.shape), dtype=dtype_of_numpy(array.dtype))


def _is_uniform(array: np.ndarray) -> bool:
    """Whether `full` can say the array: one number, which its attribute (f64) holds exactly; -0.0 is left alone."""
    first = array.flat[0]
    if array.dtype.kind not in "fib" or (array != first).any() or (np.signbit(float(first)) and not first):
        return False
    return array.dtype.kind != "i" or abs(int(first)) <= 2**53


def _weight_name(operation: ir.Operation) -> str:
    for value in operation.operands:
        source = constant_source(value)
        if source is not None and source.name == "mlc.weight":
            return attrs_of(source)["name"]
    return "folded"


def _channel_vector(
    value: ir.Value, result_rank: int, channels: int, axis: int, store: WeightStore
) -> np.ndarray | None:
    """A constant that varies along the channel dimension only, as a vector; None for anything else."""
    if constant_source(value) is None:
        return None
    shape = (1,) * (result_rank - type_of(value).rank) + type_of(value).shape
    if any(s != 1 and d != axis for d, s in enumerate(shape)) or len(shape) != result_rank:
        return None
    return np.broadcast_to(array_of(value, store).reshape(-1), (channels,))


def _fold_scale(operation: ir.Operation, store: WeightStore) -> Value | None:
    """conv(x, w, b) * s + t by constants: conv(x, w * s, b * s + t)."""
    if operation.name not in ("mlc.mul", "mlc.add", "mlc.sub"):
        return None
    for position in range(2):
        owner = operation.operands[position].owner
        if (
            isinstance(owner, ir.Block)
            or owner.operation.name != "mlc.conv"
            or len(users_of(operation.operands[position])) != 1
        ):
            continue
        if operation.name == "mlc.sub" and position == 1:
            continue
        return _scaled_conv(operation, owner.operation, operation.operands[1 - position], store)
    return None


def _scaled_conv(operation: ir.Operation, conv: ir.Operation, factor: ir.Value, store: WeightStore) -> Value | None:
    attrs, (x, w, bias) = attrs_of(conv), operands_of(conv)
    result = type_of(conv.results[0])
    if type_of(operation.results[0]) != result or constant_source(w) is None:
        return None
    if bias is not None and constant_source(bias) is None:
        return None
    axis = 1 if attrs["layout"] == "nchw" else result.rank - 1
    channels = type_of(w).shape[0]
    vector = _channel_vector(factor, result.rank, channels, axis, store)
    if vector is None:
        return None
    weight = array_of(w, store)
    offset = np.zeros(channels, weight.dtype) if bias is None else array_of(bias, store)
    if operation.name == "mlc.mul":
        scaled = weight * vector.reshape(-1, *[1] * (weight.ndim - 1)).astype(weight.dtype)
        offset = offset * vector
    else:
        scaled, offset = weight, offset + (vector if operation.name == "mlc.add" else -vector)
    builder = OpBuilder(ir.InsertionPoint(operation), ir.Location.fused([conv.location, operation.location]))
    name = _weight_name(conv)
    new_w = Value(w) if scaled is weight else make_constant(builder, store, name, scaled)
    new_bias = make_constant(builder, store, f"{name}.bias", offset.astype(weight.dtype))
    return builder.conv(Value(x), new_w, new_bias, **attrs)


@dataclass(frozen=True)
class Fold(Pass):
    """Evaluates ops on constants by their own reference, and folds scales and offsets of batch norms into convolutions.

    Before: any L0 module. After: no op has constant operands only, unless its result would be much larger than they
    are; none adds zero, multiplies by one or the like (see neutral.py).
    """

    def run(self, module: ir.Module) -> None:
        store = store_of(module)
        block = body_of(functions(module)["forward"])
        changed = True
        while changed:
            changed = False
            for operation in mlc_ops(block):
                changed |= self._fold(operation, store, module)
            drop_dead(block)

    def _fold(self, operation: ir.Operation, store: WeightStore, module: ir.Module) -> bool:
        if not any(True for r in operation.results for _ in r.uses):
            return False
        if _foldable(operation):
            arrays = _evaluate(operation, store, module)
            builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
            name = _weight_name(operation)
            replace_op(operation, [make_constant(builder, store, name, a).ir for a in arrays])
            return True
        replacement = _fold_scale(operation, store) or without_neutral(
            operation, lambda v: _known_array(v, store, module) if _is_known(v) else None
        )
        if replacement is not None:
            replace_op(operation, [replacement.ir])
            return True
        return False
