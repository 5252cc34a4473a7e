"""ATen rows: reductions, scans, sorting, statistics, norms and distances."""

from __future__ import annotations

import math
from typing import Any

from mlc.dialects import dims
from mlc.frontend.aten_rows import AtenBuilder, alias, is_float, row
from mlc.frontend.report import UnsupportedCaseError

alias("aten.special_logsumexp", "aten.logsumexp")
alias("aten.msort", "aten.sort")


# --- sums, extremes, truth ---


for _op in ("sum", "prod", "mean"):

    @row(f"aten.{_op}")
    def _arithmetic(b: AtenBuilder, x: Any, dim: Any = None, keepdim: bool = False, name: str = _op, **kw: Any) -> Any:
        return b.reduce(name, b.cast(x, b.out_dtype), dim, keepdim)


@row("aten.nansum")
def nansum(b: AtenBuilder, x: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    x = b.where(b.op("isnan", x), 0, x, x.dtype) if is_float(x.dtype) else x
    return b.reduce("sum", b.cast(x, b.out_dtype), dim, keepdim)


@row("aten.nanmean")
def nanmean(b: AtenBuilder, x: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    is_nan = b.op("isnan", x)
    total = b.reduce("sum", b.where(is_nan, 0, x, x.dtype), dim, keepdim)
    return b.div(total, b.reduce("sum", b.cast(b.op("logical_not", is_nan), x.dtype), dim, keepdim))


@row("aten.count_nonzero")
def count_nonzero(b: AtenBuilder, x: Any, dim: Any = None) -> Any:
    return b.reduce("sum", b.cast(b.cast(x, "bool"), "i64"), dim)


def _extreme(b: AtenBuilder, name: str, x: Any, dim: Any, keepdim: bool) -> Any:
    """max or min; of bools through any and all."""
    if x.dtype == "bool":
        return b.reduce({"max": "any", "min": "all"}[name], x, dim, keepdim)
    return b.reduce(name, x, dim, keepdim)


@row("aten.amax")
def amax(b: AtenBuilder, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _extreme(b, "max", x, dim, keepdim)


@row("aten.amin")
def amin(b: AtenBuilder, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _extreme(b, "min", x, dim, keepdim)


@row("aten.aminmax")
def aminmax(b: AtenBuilder, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _extreme(b, "min", x, dim, keepdim), _extreme(b, "max", x, dim, keepdim)


for _op in ("max", "min"):

    @row(f"aten.{_op}")
    def _extreme_row(b: AtenBuilder, x: Any, dim: Any = None, keepdim: bool = False, name: str = _op) -> Any:
        """Of all elements; or along one dimension, with where it was found."""
        if dim is None:
            return _extreme(b, name, x, None, False)
        return _extreme(b, name, x, dim, keepdim), _where_extreme(b, f"arg{name}", x, dim, keepdim)


for _op in ("argmax", "argmin"):

    @row(f"aten.{_op}")
    def _argument_row(b: AtenBuilder, x: Any, dim: Any = None, keepdim: bool = False, name: str = _op) -> Any:
        if dim is None:
            flat = b.reshape(x, [dims.product(x.shape)])
            return b.reshape(_where_extreme(b, name, flat, 0, False), b.out_shape)
        return _where_extreme(b, name, x, dim, keepdim)


def _where_extreme(b: AtenBuilder, name: str, x: Any, dim: int, keepdim: bool) -> Any:
    if not x.shape:
        return b.full([], 0, "i64")
    return b.op(name, x, axis=b.axis(x, dim), keepdims=keepdim)


for _op in ("any", "all"):

    @row(f"aten.{_op}")
    def _truth(b: AtenBuilder, x: Any, dim: Any = None, keepdim: bool = False, name: str = _op) -> Any:
        return b.cast(b.reduce(name, b.cast(x, "bool"), dim, keepdim), b.out_dtype)


# --- statistics ---


def _spread(b: AtenBuilder, x: Any, dim: Any, correction: float, keepdim: bool) -> tuple[Any, Any]:
    """(variance, mean) over `dim`, in two passes: the mean first, then the squares about it."""
    axes = b.axes(x, dim)
    center = b.reduce("mean", x, axes, True)
    off = b.sub(x, center)
    total = b.reduce("sum", b.mul(off, off), axes, keepdim)
    count = b.count(x, axes)
    if isinstance(count, int):
        divisor = max(count - correction, 0.0)
        variance = b.div(total, float(divisor), x.dtype)
    else:
        divisor = b.sub(b.scalar(count, x.dtype), float(correction), x.dtype)
        variance = b.div(total, b.clamp(divisor, 0, None), x.dtype)
    mean = center if keepdim else b.squeeze(center, *axes)
    return variance, mean


def _spread_arguments(args: Any, kwargs: dict[str, Any]) -> tuple[Any, float, bool]:
    """(dim, correction, keepdim) from (unbiased), (dim, unbiased, keepdim) or (dim, *, correction, keepdim)."""
    values = list(args)
    dim = kwargs.get("dim")
    unbiased: Any = kwargs.get("unbiased")
    if values and isinstance(values[0], bool):
        unbiased = values.pop(0)
    elif values:
        dim = values.pop(0)
        if values:
            unbiased = values.pop(0)
    keepdim = values.pop(0) if values else kwargs.get("keepdim", False)
    correction = kwargs.get("correction")
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    return dim, correction, keepdim


@row("aten.var")
def var(b: AtenBuilder, x: Any, *args: Any, **kwargs: Any) -> Any:
    return _spread(b, x, *_spread_arguments(args, kwargs))[0]


@row("aten.std")
def std(b: AtenBuilder, x: Any, *args: Any, **kwargs: Any) -> Any:
    return b.op("sqrt", var(b, x, *args, **kwargs))


@row("aten.var_mean")
def var_mean(b: AtenBuilder, x: Any, *args: Any, **kwargs: Any) -> Any:
    return _spread(b, x, *_spread_arguments(args, kwargs))


@row("aten.std_mean")
def std_mean(b: AtenBuilder, x: Any, *args: Any, **kwargs: Any) -> Any:
    variance, mean = var_mean(b, x, *args, **kwargs)
    return b.op("sqrt", variance), mean


@row("aten.logsumexp")
def logsumexp(b: AtenBuilder, x: Any, dim: Any, keepdim: bool = False) -> Any:
    """The largest element is taken out first; an infinite one is left as it is."""
    x = b.cast(x, b.out_dtype)
    axes = b.axes(x, dim)
    top = b.reduce("max", x, axes, True)
    shift = b.where(b.op("isinf", top), 0, top, x.dtype)
    total = b.reduce("sum", b.op("exp", b.sub(x, shift)), axes, keepdim)
    return b.add(b.op("log", total), shift if keepdim else b.squeeze(shift, *axes))


# --- norms and distances ---


@row("aten.linalg_vector_norm")
def vector_norm(b: AtenBuilder, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return _norm(b, b.cast(x, b.out_dtype), ord, dim, keepdim)


@row("aten.norm")
def norm(b: AtenBuilder, x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return _norm(b, b.cast(x, b.out_dtype), 2 if p is None else p, dim, keepdim)


@row("aten.linalg_norm", "aten.linalg_matrix_norm", "aten.frobenius_norm")
def matrix_norm(b: AtenBuilder, x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    if isinstance(ord, list):  # frobenius_norm(x, dim)
        ord, dim = None, ord
    axes = b.axes(x, dim)
    if ord is not None and ord != "fro" and len(axes) != 1:
        raise UnsupportedCaseError(f"the matrix norm {ord}")
    return _norm(b, x, 2 if ord is None or ord == "fro" else ord, axes, keepdim)


def _norm(b: AtenBuilder, x: Any, order: float, dim: Any, keepdim: bool) -> Any:
    """(sum of |x|^p)^(1/p), and its limits at 0 and the infinities."""
    size = b.op("abs", x)
    if order == math.inf:
        return b.reduce("max", size, dim, keepdim)
    if order == -math.inf:
        return b.reduce("min", size, dim, keepdim)
    if order == 0:
        return b.reduce("sum", b.cast(b.binary("ne", x, 0, x.dtype), x.dtype), dim, keepdim)
    if order == 1:
        return b.reduce("sum", size, dim, keepdim)
    if order == 2:
        return b.op("sqrt", b.reduce("sum", b.mul(x, x), dim, keepdim))
    total = b.reduce("sum", b.binary("pow", size, float(order), x.dtype), dim, keepdim)
    return b.binary("pow", total, 1 / order, x.dtype)


@row("aten.dist")
def dist(b: AtenBuilder, x: Any, y: Any, p: float = 2) -> Any:
    return _norm(b, b.sub(x, y), p, None, False)


@row("aten.cdist", "aten._cdist_forward", "aten._euclidean_dist")
def cdist(b: AtenBuilder, x: Any, y: Any, p: float = 2.0, compute_mode: Any = None) -> Any:
    return _norm(b, b.sub(b.unsqueeze(x, -2), b.unsqueeze(y, len(y.shape) - 2)), p, -1, False)


@row("aten.pairwise_distance")
def pairwise_distance(b: AtenBuilder, x: Any, y: Any, p: float = 2, eps: float = 1e-6, keepdim: bool = False) -> Any:
    return _norm(b, b.add(b.sub(x, y), eps), p, -1, keepdim)


@row("aten.cosine_similarity")
def cosine_similarity(b: AtenBuilder, x: Any, y: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    x, y = (b.div(v, b.clamp(_norm(b, v, 2, dim, True), eps, None)) for v in (x, y))
    return b.reduce("sum", b.mul(x, y), dim)


@row("aten.renorm")
def renorm(b: AtenBuilder, x: Any, p: float, dim: int, maxnorm: float) -> Any:
    axes = [axis for axis in range(len(x.shape)) if axis != b.axis(x, dim)]
    size = _norm(b, x, p, axes, True)
    scale = b.div(maxnorm, b.add(size, 1e-7, x.dtype), x.dtype)
    return b.where(b.binary("gt", size, maxnorm, x.dtype), b.mul(x, scale), x)


# --- scans ---


for _op in ("cumsum", "cumprod"):

    @row(f"aten.{_op}")
    def _scan(b: AtenBuilder, x: Any, dim: int, dtype: Any = None, name: str = _op) -> Any:
        x = b.cast(x, b.out_dtype)
        return b.op(name, x, axis=b.axis(x, dim)) if x.shape else x


@row("aten.logcumsumexp")
def logcumsumexp(b: AtenBuilder, x: Any, dim: int) -> Any:
    axis = b.axis(x, dim)
    top = b.reduce("max", x, axis, True)
    shift = b.where(b.op("isinf", top), 0, top, x.dtype)
    return b.add(b.op("log", b.op("cumsum", b.op("exp", b.sub(x, shift)), axis=axis)), shift)


for _op in ("cummax", "cummin"):

    @row(f"aten.{_op}")
    def _running_extreme(b: AtenBuilder, x: Any, dim: int, name: str = _op) -> Any:
        """With where each was found: the last position so far that equals it, as torch has it."""
        if not x.shape:
            return x, b.full([], 0, "i64")
        axis = b.axis(x, dim)
        values = b.op(name, x, axis=axis)
        shape = [1] * len(x.shape)
        shape[axis] = x.shape[axis]
        positions = b.reshape(b.iota(x.shape[axis], "i64"), shape)
        return values, b.op("cummax", b.where(b.binary("eq", x, values), positions, -1, "i64"), axis=axis)


@row("aten.diff")
def diff(b: AtenBuilder, x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    axis = b.axis(x, dim)
    parts = [part for part in (prepend, x, append) if part is not None]
    x = b.concat(parts, axis)
    for _ in range(n):
        size = x.shape[axis]
        after, before = b.slice(x, axis, 1, size), b.slice(x, axis, 0, size - 1)
        x = b.binary("logical_xor" if x.dtype == "bool" else "sub", after, before)
    return x


# --- order ---


@row("aten.topk")
def topk(b: AtenBuilder, x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return b.op("topk", x, k=k, axis=b.axis(x, dim), largest=largest, sorted=sorted)


@row("aten.sort")
def sort(b: AtenBuilder, x: Any, dim: int = -1, descending: bool = False, stable: Any = None) -> Any:
    return b.op("sort", x, axis=b.axis(x, dim), descending=descending)


@row("aten.sort.stable")
def sort_stable(b: AtenBuilder, x: Any, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    return sort(b, x, dim, descending)


@row("aten.argsort")
def argsort(b: AtenBuilder, x: Any, dim: int = -1, descending: bool = False, stable: Any = None) -> Any:
    return sort(b, x, dim, descending)[1]


@row("aten.argsort.stable")
def argsort_stable(b: AtenBuilder, x: Any, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    return sort(b, x, dim, descending)[1]


@row("aten.kthvalue")
def kthvalue(b: AtenBuilder, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.shape:
        return x, b.full([], 0, "i64")
    axis = b.axis(x, dim)
    picked = tuple(b.slice(part, axis, k - 1, k) for part in sort(b, x, dim))
    return picked if keepdim else tuple(b.squeeze(part, axis) for part in picked)


@row("aten.median")
def median(b: AtenBuilder, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The lower of the two middle elements."""
    if dim is None:
        flat = b.reshape(x, [dims.product(x.shape)])
        return kthvalue(b, flat, (flat.shape[0] + 1) // 2, 0)[0]
    return kthvalue(b, x, (x.shape[b.axis(x, dim)] + 1) // 2 if x.shape else 1, dim, keepdim)


@row("aten.nanmedian")
def nanmedian(b: AtenBuilder, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The lower of the two middle elements of those that are numbers, which sorting puts first."""
    if not is_float(x.dtype) or not x.shape:
        return median(b, x, dim, keepdim)
    line = b.reshape(x, [dims.product(x.shape)]) if dim is None else x
    axis = 0 if dim is None else b.axis(x, dim)
    count = b.reduce("sum", b.cast(b.op("logical_not", b.op("isnan", line)), "i64"), [axis], True)
    place = b.binary("maximum", b.binary("floor_div", b.sub(count, 1, "i64"), 2, "i64"), 0, "i64")
    picked = [b.op("gather_elements", part, place, axis=axis) for part in sort(b, line, axis)]
    if dim is None:
        return b.reshape(picked[0], [])
    return tuple(picked) if keepdim else tuple(b.squeeze(part, axis) for part in picked)


@row("aten.searchsorted")
def searchsorted(b: AtenBuilder, edges: Any, x: Any, **kwargs: Any) -> Any:
    is_right = kwargs.get("right", False) or kwargs.get("side") == "right"
    return buckets(b, x, edges, is_right)


@row("aten.bucketize")
def bucketize(b: AtenBuilder, x: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
    return buckets(b, x, boundaries, right)


def buckets(b: AtenBuilder, x: Any, edges: Any, is_right: bool) -> Any:
    """How many edges lie below each element (or at it)."""
    x = b.scalar(x, b.promote(x, edges)) if not hasattr(x, "shape") else x
    lined = b.unsqueeze(edges, *range(len(x.shape))) if len(edges.shape) == 1 else b.unsqueeze(edges, -2)
    below = b.binary("le" if is_right else "lt", lined, b.unsqueeze(x, -1))
    return b.reduce("sum", b.cast(below, b.out_dtype), -1)


@row("aten.histc")
def histc(b: AtenBuilder, x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Counts in equal bins of [min, max]; the last one is closed."""
    if min == max:
        raise UnsupportedCaseError("histc over the data's own range; give min and max")
    flat = b.reshape(x, [dims.product(x.shape)])
    spot = b.op("floor", b.mul(b.sub(flat, float(min), x.dtype), bins / (max - min), x.dtype))
    is_top = b.binary("eq", flat, float(max), x.dtype)
    spot = b.where(is_top, float(bins - 1), spot, x.dtype)
    hits = b.binary("eq", b.unsqueeze(spot, 1), b.unsqueeze(b.iota(bins, x.dtype), 0))
    return b.reduce("sum", b.cast(hits, b.out_dtype), 0)
