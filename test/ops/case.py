"""A test row of an op, and its expansion into inputs, attributes and a tolerance.

    CASES = [
        Case("relu", [(5, 7)], dtypes=FLOATS + INTS, special=True),
        Case("gather", [(9, 4), (3,)], dtypes=FLOATS, attrs={"axis": 0}, make={1: integers(-9, 9)}),
    ]

Every consumer runs the same rows: the bodies against torch, compiled code against the bodies. One row gives one example
a dtype; the op's signature says which operands take that dtype.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mlc.dialects import op as op_module
from mlc.dialects.build import load_ops
from mlc.dialects.types import DTYPES

FLOATS = ("f32", "f64", "f16", "bf16")
SIGNED = ("i64", "i32", "i16", "i8")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTS = SIGNED + UNSIGNED
BOOL = ("bool",)
ALL = FLOATS + INTS + BOOL

# Every pointwise row runs over these: 0-D, one element, odd, prime, a multiple of the vector, more dimensions, empty.
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (7,), (64,), (3, 1, 37), (2, 0, 3))

Shape = tuple[int, ...]
Maker = Callable[[np.random.Generator, Shape, str], np.ndarray]


@dataclass(frozen=True)
class Case:
    """One row. `shapes` has one entry an operand (None: absent; variadic operands: as many as given).

    `domain` is the range of the operands, one pair for all or one an operand; `make` replaces the data of an operand.
    `special` puts NaN, infinities, signed zeros and denormals among the floats, the extremes among the integers.
    `length` is how many terms a result element is made of, `magnitude` the size of the largest term (or intermediate
    value) in it: both make the tolerance, see `tolerance`. `oracle` computes the expected results from torch tensors
    where the op names no torch op; None there: the row has no oracle but compiled code.
    """

    op: str
    shapes: Sequence[Shape | None]
    dtypes: Sequence[str] = FLOATS
    attrs: dict[str, Any] = field(default_factory=dict)
    domain: tuple[float, float] | Sequence[tuple[float, float]] = (-4.0, 4.0)
    make: dict[int, Maker] = field(default_factory=dict)
    special: bool = False
    length: int = 1
    magnitude: float = 0.0
    ulps: float = 4.0
    oracle: Callable[..., Any] | None = None
    name: str = ""


@dataclass(frozen=True)
class Tolerance:
    """|found - expected| <= relative * |expected| + absolute; NaN and infinities must agree."""

    relative: float
    absolute: float


@dataclass(frozen=True)
class Example:
    """A row for one dtype: arrays (None: absent operand) ready to run."""

    case: Case
    dtype: str
    inputs: list[np.ndarray | None]
    tolerance: Tolerance

    @property
    def id(self) -> str:
        parts = [self.case.op, self.case.name, self.dtype]
        parts += ["x".join(map(str, s)) if s else "scalar" for s in self.case.shapes if s is not None]
        parts += [f"{k}={v}" for k, v in self.case.attrs.items()]
        return "-".join(str(p) for p in parts if p != "").replace(" ", "")


def epsilon(dtype: str) -> float:
    """The distance from 1 to the next number; 0 for integers and bool."""
    return {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}.get(dtype, 0.0)


def tolerance(dtype: str, length: int = 1, magnitude: float = 0.0, ulps: float = 4.0) -> Tolerance:
    """What rounding can make of a result with `length` terms of at most `magnitude`, accumulated in f32 or wider.

    Relative: `ulps` roundings of the result. Absolute: each term and each partial sum is rounded once; partial sums
    of terms of either sign grow as the root of their number, so do the errors over them; plus the least denormals.
    """
    if not DTYPES[dtype].is_float or DTYPES[dtype].is_stored_only:
        return Tolerance(0.0, 0.0)
    accumulator = epsilon("f32" if DTYPES[dtype].is_narrow_float else dtype)
    denormal = {"f64": 2.0**-1074, "f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}[dtype]
    terms = max(length, 1)
    return Tolerance(ulps * epsilon(dtype), ulps * (accumulator * magnitude * terms * terms**0.5 + denormal))


def violations(found: Any, expected: Any, allowed: Tolerance) -> str:
    """Says where two results differ by more than `allowed`, or "" where they do not."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return f"shape {found.shape}, expected {expected.shape}"
    if found.dtype != expected.dtype:
        return f"dtype {found.dtype}, expected {expected.dtype}"
    if found.dtype.kind in "iub":
        bad = found != expected
        error = found.astype(np.float64) - expected.astype(np.float64)
    else:
        a, b = found.astype(np.float64), expected.astype(np.float64)
        with np.errstate(all="ignore"):
            error = np.abs(a - b)
            bad = ~((error <= allowed.relative * np.abs(b) + allowed.absolute) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0]) if bad.ndim else ()
    where = f"at {at}: {found[at]}, expected {expected[at]} ({error[at]:.3g})"
    return f"{int(bad.sum())} of {bad.size} elements differ; {where}"


# --- data ---


def integers(low: int, high: int) -> Maker:
    """Whole numbers in [low, high)."""
    return lambda rng, shape, dtype: np.asarray(rng.integers(low, high, shape)).astype(DTYPES[dtype].numpy)


def values(*numbers: Any) -> Maker:
    """These numbers over and over."""
    return lambda rng, shape, dtype: np.resize(np.array(numbers), shape).astype(DTYPES[dtype].numpy)


def numbers_in(low: float, high: float, special: bool = False) -> Maker:
    """Uniform in [low, high], cut to the range of integers; `special`: with the values that code gets wrong."""

    def make(rng: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
        info = DTYPES[dtype]
        if info.kind == "b":
            return np.asarray(rng.integers(0, 2, shape)).astype(np.bool_)
        if info.kind in "iu":
            limits = np.iinfo(info.numpy)
            bounds = max(int(low), limits.min), min(int(high), limits.max)
            array = np.array(rng.integers(*bounds, shape, dtype=info.numpy, endpoint=True))
            extremes = [limits.min, limits.max, 0, 1]
        else:
            array = np.array(rng.uniform(low, high, shape)).astype(info.numpy)
            tiny = float(np.float32(2.0**-140)) if info.bits != 16 else 2.0**-24 if dtype == "f16" else 2.0**-130
            extremes = [np.nan, np.inf, -np.inf, -0.0, 0.0, tiny, -tiny, low, high]
        if special and array.size:
            flat = array.reshape(-1)
            count = min(len(extremes), flat.size)
            places = rng.permutation(flat.size)[:count]
            flat[places] = np.array(extremes[:count]).astype(info.numpy) if info.kind == "f" else extremes[:count]
        return array

    return make


def operand_dtypes(case: Case, dtype: str) -> list[str]:
    """The element type of each operand of a row when its type variable is `dtype`."""
    out = []
    operands = load_ops()[case.op].operands
    for index in range(len(case.shapes)):
        wanted = operands[min(index, len(operands) - 1)].pattern.dtype
        out.append(dtype if wanted in op_module._CLASSES else wanted)
    return out


def example(case: Case, dtype: str) -> Example:
    rng = np.random.default_rng(zlib.crc32(f"{case.op} {case.name} {dtype} {case.shapes} {case.attrs}".encode()))
    domain = case.domain
    pairs: Sequence[Any] = domain if isinstance(domain[0], (tuple, list)) else [domain] * len(case.shapes)
    inputs: list[np.ndarray | None] = []
    for index, (shape, element) in enumerate(zip(case.shapes, operand_dtypes(case, dtype), strict=True)):
        make = case.make.get(index) or numbers_in(*pairs[index], special=case.special)
        inputs.append(None if shape is None else make(rng, shape, element))
    return Example(case, dtype, inputs, tolerance(dtype, case.length, case.magnitude, case.ulps))


def examples(cases: Iterable[Case]) -> list[Example]:
    """Every row for every dtype it names."""
    return [example(case, dtype) for case in cases for dtype in case.dtypes]


def pointwise(op: str, operands: int = 1, **row: Any) -> list[Case]:
    """A row a shape of SHAPES, and for several operands rows that broadcast."""
    cases = [Case(op, [shape] * operands, **row) for shape in SHAPES]
    if operands > 1:
        cases.append(Case(op, [(5, 1, 9), *[(4, 9)] * (operands - 1)], **row))
        cases.append(Case(op, [*[(6, 8)] * (operands - 1), ()], **row))
    return cases


def reference(sample: Example) -> list[np.ndarray]:
    """The op's body on the inputs, results cast as the interpreter casts them."""
    from mlc.dialects.types import TensorType, dtype_of_numpy

    definition = load_ops()[sample.case.op]
    attrs = definition.attribute_values(sample.case.attrs)
    with np.errstate(all="ignore"):
        result = definition.reference(*sample.inputs, **attrs)
    types = [None if x is None else TensorType(dtype_of_numpy(x.dtype), x.shape) for x in sample.inputs]
    if any(o.is_variadic for o in definition.operands):
        fixed = len(definition.operands) - 1
        grouped: list[Any] = [*types[:fixed], types[fixed:]]
    else:
        grouped = types + [None] * (len(definition.operands) - len(types))
    wanted = definition.infer(grouped, attrs)
    results = result if isinstance(result, tuple) else (result,)
    out = []
    for type_, array in zip(wanted, results, strict=True):
        array = np.asarray(array)
        assert array.shape == type_.shape, f"mlc.{definition.name}: body gives {array.shape}, infer says {type_}"
        out.append(array.astype(DTYPES[type_.dtype].numpy, copy=False))
    return out
