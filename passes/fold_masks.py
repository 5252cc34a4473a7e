"""Attention masks that are bands, causal and sliding windows above all, become bounds of the op: no mask is read, and
blocks of keys outside are never computed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mlc.dialects import reference
from mlc.dialects.attention import NO_BOUND, band_of
from mlc.dialects.build import attrs_of, definition_of, operands_of, type_of
from mlc.dialects.builder import OpBuilder, Value
from mlc.dialects.types import DTYPES
from mlir import ir

from .base import Pass
from .dce import drop_dead
from .fold import make_constant
from .rewriting import body_of, functions, mlc_ops, replace_op
from .simplify import producer

_Band = tuple[int, int]  # before, after
_LEAST_LOW = -1e30  # an added number from here down hides a key: it is what models write for -inf
_EVALUATED_ELEMENTS_MAX = 1 << 24  # of each value of a mask that is computed from positions


@dataclass(frozen=True)
class _Affine:
    """query * i + key * j + offset, i the place in the last dimension but one, j in the last."""

    query: int
    key: int
    offset: int

    def combined(self, other: _Affine, combine: Callable[[int, int], int]) -> _Affine:
        pairs = zip((self.query, self.key, self.offset), (other.query, other.key, other.offset), strict=True)
        return _Affine(*(combine(a, b) for a, b in pairs))


def _affine(value: ir.Value, axis: int | None = None) -> _Affine | None:
    """An integer value as a function of its place; `axis` (-1, -2) is where a 1-D value varies in the mask."""
    owner = value.owner
    if isinstance(owner, ir.Block) or DTYPES[type_of(value).dtype].is_float:
        return None
    attrs, name, shape = attrs_of(owner.operation), owner.operation.name, type_of(value).shape
    if name == "mlc.constant" and attrs["value"].size == 1:
        return _Affine(0, 0, int(attrs["value"].reshape(-1)[0]))
    if name == "mlc.iota" and isinstance(attrs["start"], int):
        step = attrs["step"]
        return _Affine(step, 0, attrs["start"]) if axis == -2 else _Affine(0, step, attrs["start"])
    if name == "mlc.reshape":
        return _affine_of_row(owner.operation.operands[0], shape)
    if name in ("mlc.cast", "mlc.broadcast_to") and len(shape) == type_of(owner.operation.operands[0]).rank:
        return _affine(owner.operation.operands[0], axis)
    if name in ("mlc.add", "mlc.sub"):
        left, right = (_affine(x, axis) for x in owner.operation.operands)
        if left is None or right is None:
            return None
        return left.combined(right, operator.add if name == "mlc.add" else operator.sub)
    return None


def _affine_of_row(row: ir.Value, shape: tuple) -> _Affine | None:
    """A 1-D value put along the last dimension of `shape`, or the last but one."""
    if type_of(row).rank != 1:
        return None
    [size] = type_of(row).shape
    for axis in (-1, -2):
        if len(shape) >= -axis and [s for s in shape if s != 1] == [size] and shape[axis] == size:
            return _affine(row, axis)
    return None


_COMPARED = {"mlc.le": (1, 0), "mlc.lt": (1, -1), "mlc.ge": (-1, 0), "mlc.gt": (-1, -1)}


def _compared(value: ir.Value) -> _Band | None:
    """A comparison of positions, as the keys that it lets through."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name not in _COMPARED:
        return None
    left, right = (_affine(x) for x in owner.operation.operands)
    if left is None or right is None:
        return None
    sign, slack = _COMPARED[owner.operation.name]
    # sign * (left - right) <= slack
    form = left.combined(right, operator.sub)
    query, key, offset = (sign * n for n in (form.query, form.key, form.offset))
    if (query, key) == (-1, 1):  # j - i <= slack - offset
        return NO_BOUND, slack - offset
    if (query, key) == (1, -1):
        return slack - offset, NO_BOUND
    return None


def _band_of_array(visible: np.ndarray) -> _Band | None:
    """The bounds of a mask [..., queries, keys] of bool that is a band, the same for all heads; None for others."""
    queries, keys = visible.shape[-2:]
    if visible.size != queries * keys or queries < 2 or keys < 2:
        return None
    visible = visible.reshape(queries, keys)
    ahead = np.arange(keys) - np.arange(queries)[:, None]
    seen = ahead[visible]
    if not seen.size or not np.array_equal(visible, (ahead >= seen.min()) & (ahead <= seen.max())):
        return None
    before, after = -int(seen.min()), int(seen.max())
    return NO_BOUND if before >= queries - 1 else before, NO_BOUND if after >= keys - 1 else after


@dataclass
class _Folder:
    """Masks of one function; `known` keeps what has been evaluated, as many layers share a mask."""

    module: ir.Module
    known: dict[ir.Value, np.ndarray | None]
    bands: dict[ir.Value, _Band | None]

    def array(self, value: ir.Value) -> np.ndarray | None:
        """The value, where it depends on constants and positions only and is not too large."""
        if value not in self.known:
            self.known[value] = self._evaluated(value)
        return self.known[value]

    def _evaluated(self, value: ir.Value) -> np.ndarray | None:
        owner = value.owner
        if isinstance(owner, ir.Block) or not type_of(value).is_static:
            return None
        if type_of(value).elements > _EVALUATED_ELEMENTS_MAX or len(owner.operation.results) > 1:
            return None
        if definition_of(owner.operation).name == "random_uniform":
            return None
        inputs = []
        for operand in operands_of(owner.operation):
            parts = operand if isinstance(operand, list) else [operand]
            arrays = [None if part is None else self.array(part) for part in parts]
            if any(a is None and p is not None for a, p in zip(arrays, parts, strict=True)):
                return None
            inputs.append(arrays if isinstance(operand, list) else arrays[0])
        return reference.run_op(owner.operation, inputs, {}, self.module)[0]

    def band(self, value: ir.Value) -> _Band | None:
        if value not in self.bands:
            found = _compared(value)
            if found is None and type_of(value).rank >= 2 and _is_plane(value):
                array = self.array(value)
                found = None if array is None else _band_of_array(array)
            self.bands[value] = found
        return self.bands[value]

    def split(self, value: ir.Value) -> tuple[list[_Band], list[ir.Value]]:
        """The conjuncts of a bool mask: bands, and the rest."""
        found = self.band(value)
        if found is not None:
            return [found], []
        both = producer(value, "bitwise_and") or producer(value, "logical_and")
        if both is not None:
            parts = [self.split(operand) for operand in both.operands]
            bands = [band for part in parts for band in part[0]]
            return (bands, [v for part in parts for v in part[1]]) if bands else ([], [value])
        view = producer(value, "reshape") or producer(value, "broadcast_to")
        if view is not None and _same_plane(view.operands[0], value):
            bands, rest = self.split(view.operands[0])
            return (bands, rest) if bands else ([], [value])
        return [], [value]

    def added(self, value: ir.Value) -> tuple[ir.Value | np.ndarray, bool] | None:
        """(what is visible, whether the hidden ones are -inf) of a float mask that only hides; an array, if known."""
        array = self.array(value) if _is_plane(value) else None
        if array is not None:
            wide = array.astype(np.float64)
            is_hidden = wide <= _LEAST_LOW
            return (~is_hidden, bool(np.isneginf(wide[is_hidden]).all())) if (is_hidden | (wide == 0)).all() else None
        where = producer(value, "where")
        if where is None:
            return None
        yes, no = (_number(x) for x in list(where.operands)[1:])
        if yes == 0 and no is not None and no <= _LEAST_LOW:
            return where.operands[0], no == -np.inf
        return None


def _number(value: ir.Value) -> float | None:
    constant = producer(value, "constant")
    if constant is None or attrs_of(constant)["value"].size != 1:
        return None
    return float(attrs_of(constant)["value"].reshape(-1)[0])


def _is_plane(value: ir.Value) -> bool:
    """Whether all dimensions but the last two are 1."""
    return all(size == 1 for size in type_of(value).shape[:-2])


def _same_plane(inner: ir.Value, outer: ir.Value) -> bool:
    """Whether `outer` is `inner` but for leading dimensions of 1, or repeated along dimensions."""
    narrow, wide = type_of(inner).shape, type_of(outer).shape
    if outer.owner.operation.name == "mlc.broadcast_to":
        return True
    return _stripped(narrow) == _stripped(wide)


def _stripped(shape: tuple) -> tuple:
    return _stripped(shape[1:]) if shape and shape[0] == 1 else shape


def _fold(operation: ir.Operation, folder: _Folder) -> None:
    operands = operands_of(operation)
    mask = operands[3]
    if mask is None:
        return
    builder = OpBuilder(ir.InsertionPoint(operation), operation.location)
    visible: ir.Value | np.ndarray = mask
    is_strict = True
    if type_of(mask).dtype != "bool":
        found = folder.added(mask)
        if found is None:
            return
        visible, is_strict = found
    bands: list[_Band] = []
    rest: list[Value] = []
    if isinstance(visible, np.ndarray):
        band = _band_of_array(visible)
        bands = [] if band is None else [band]
        if band is None:
            rest = [_constant(builder, folder.module, visible)]
    else:
        bands, others = folder.split(visible)
        rest = [Value(v) for v in others]
    if not bands and type_of(mask).dtype == "bool":
        return
    attrs = attrs_of(operation)
    before = min([band_of(attrs)[0], *(b for b, _ in bands)])
    after = min([band_of(attrs)[1], *(a for _, a in bands)])
    # A row of nothing but finite lows is an average of its keys, one of -inf is 0.
    sizes = type_of(operands[0]).shape[-2], type_of(operands[1]).shape[-2]
    sees_all = _sees_all_rows(visible) if rest else min(before, after) >= 0 and sizes[0] == sizes[1]
    if not is_strict and not sees_all:
        return
    left = rest[0] if rest else None
    for value in rest[1:]:
        left = builder.logical_and(left, value)
    q, k, v = (Value(x) for x in operands[:3])
    changed = {**attrs, "is_causal": False, "before": before, "after": after}
    replace_op(operation, [builder.attention(q, k, v, left, **changed).ir])


def _sees_all_rows(visible: ir.Value | np.ndarray) -> bool:
    return isinstance(visible, np.ndarray) and bool(visible.any(axis=-1).all())


def _constant(builder: OpBuilder, module: ir.Module, visible: np.ndarray) -> Value:
    from mlc.dialects.weights import store_of

    return make_constant(builder, store_of(module), "mask", visible)


@dataclass(frozen=True)
class FoldMasks(Pass):
    """Bands in attention masks become `before` and `after`; constant float masks that only hide become bool.

    Before: match-attention ran. After: no attention's mask is, or is the conjunction of something with, a comparison
    of positions or a known band.
    """

    def run(self, module: ir.Module) -> None:
        block = body_of(functions(module)["forward"])
        folder = _Folder(module, {}, {})
        for operation in mlc_ops(block):
            if operation.name == "mlc.attention":
                _fold(operation, folder)
        drop_dead(block)
