"""ONNX resampling: Resize and Upsample of every operator set, GridSample, RoiAlign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.dialects.types import DTYPES
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.shape_values import Known, Ratio, product

if TYPE_CHECKING:
    from mlc.frontend.graph import Value

_OP_COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


@row("Upsample")
def _upsample_attribute(c: Call, x: Value) -> Value:
    return _resampled(c, x, list(range(len(x.shape))), scales=c.attr("scales"), sizes=None, roi=None, old=True)


@row("Upsample", since=9)
def _upsample(c: Call, x: Value, scales: Known) -> Value:
    return _resampled(c, x, list(range(len(x.shape))), scales=scales.items(), sizes=None, roi=None, old=True)


@row("Resize", since=10)
def _resize_10(c: Call, x: Value, scales: Known) -> Value:
    return _resampled(c, x, list(range(len(x.shape))), scales=scales.items(), sizes=None, roi=None, old=True)


@row("Resize", since=11)
def _resize(
    c: Call, x: Value, roi: Known | None = None, scales: Known | None = None, sizes: Known | None = None
) -> Value:
    axes = c.axes(x, c.attr("axes") or range(len(x.shape)))
    given_scales = scales.items() if scales is not None and scales.shape != (0,) else None
    given_sizes = sizes.items() if sizes is not None and sizes.shape != (0,) else None
    return _resampled(
        c, x, axes, scales=given_scales, sizes=given_sizes, roi=roi.items() if roi is not None else None, old=False
    )


@dataclass(frozen=True)
class _Axis:
    """How one axis is resampled: its target size, the scale if the model gives one, and its region of interest."""

    axis: int
    size: Any
    scale: Any
    roi: tuple[float, float]


def _targets(
    c: Call, x: Value, axes: list[int], scales: list | None, sizes: list | None, roi: list | None
) -> list[_Axis]:
    out = []
    sizes = _kept_aspect(c, x, axes, sizes) if sizes else sizes
    for i, axis in enumerate(axes):
        ends = (float(roi[i]), float(roi[i + len(axes)])) if roi else (0.0, 1.0)
        if scales is not None:
            region = ends[1] - ends[0] if c.attr("coordinate_transformation_mode") == "tf_crop_and_resize" else 1.0
            scaled = Ratio.of(x.shape[axis]) * Ratio.of(scales[i]) * Ratio.of(region)
            size = scaled.floor() if isinstance(scaled, Ratio) else int(np.floor(scaled + 1e-9))
            out.append(_Axis(axis, size, scales[i], ends))
        else:
            assert sizes is not None
            out.append(_Axis(axis, sizes[i], None, ends))
    return out


def _kept_aspect(c: Call, x: Value, axes: list[int], sizes: list) -> list:
    policy = c.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return sizes
    now = [x.shape[axis] for axis in axes]
    if not all(isinstance(size, int) for size in [*now, *sizes]):
        raise c.unsupported("a kept aspect ratio of sizes that vary")
    pick = min if policy == "not_larger" else max
    scale = pick(size / old for size, old in zip(sizes, now, strict=True))
    return [int(np.floor(scale * old + 0.5)) for old in now]


def _resampled(
    c: Call, x: Value, axes: list[int], *, scales: list | None, sizes: list | None, roi: list | None, old: bool
) -> Value:
    coordinate = "asymmetric" if old else c.attr("coordinate_transformation_mode", "half_pixel")
    targets = _targets(c, x, axes, scales, sizes, roi)
    crops = coordinate == "tf_crop_and_resize"
    work = [t for t in targets if crops or t.size != x.shape[t.axis] or (t.scale not in (None, 1, 1.0))]
    if not work:
        return x
    mode = c.attr("mode", "nearest")
    nearest = "floor" if old else c.attr("nearest_mode", "round_prefer_floor")
    if coordinate not in _OP_COORDINATES or _needs_matrices(c, x, work, coordinate):
        return _by_matrices(c, x, work, mode, coordinate, nearest)
    work.sort(key=lambda t: t.axis)
    moved = [t.axis for t in work]
    attrs: dict[str, Any] = {"mode": mode, "coordinate": coordinate, "nearest": nearest}
    attrs |= {"cubic_coeff_a": c.attr("cubic_coeff_a", -0.75), "antialias": bool(c.attr("antialias", 0))}
    attrs["exclude_outside"] = bool(c.attr("exclude_outside", 0))
    if all(t.scale is not None and not isinstance(t.scale, Ratio) for t in work):
        attrs["scales"] = [float(t.scale) for t in work]
    rest = [i for i in range(len(x.shape)) if i not in moved]
    if moved == list(range(2, len(x.shape))) and len(rest) == 2:
        return c.resize(x, sizes=[t.size for t in work], **attrs)
    perm = rest + moved
    y = c.permuted(x, perm)
    y = c.shaped(y, [product(x.shape[i] for i in rest), 1, *(x.shape[i] for i in moved)])
    y = c.resize(y, sizes=[t.size for t in work], **attrs)
    y = c.shaped(y, [*(x.shape[i] for i in rest), *(t.size for t in work)])
    return c.permuted(y, [perm.index(i) for i in range(len(perm))])


def _needs_matrices(c: Call, x: Value, work: list[_Axis], coordinate: str) -> bool:
    """Whether ONNX means something else than the op: an antialias filter that repeats the edge, or the last corner of a
    target size that is no whole number."""
    if c.attr("antialias", 0) and not c.attr("exclude_outside", 0):
        return True
    if coordinate != "align_corners":
        return False
    return any(
        isinstance(t.scale, float) and isinstance(t.size, int) and abs(t.scale * x.shape[t.axis] - t.size) > 1e-6
        for t in work
    )


# --- coordinate rules that the op does not have: one interpolation matrix an axis, on known sizes ---


def _by_matrices(c: Call, x: Value, work: list[_Axis], mode: str, coordinate: str, nearest: str) -> Value:
    dtype = x.dtype
    y = c.to(x, "f32") if dtype not in ("f32", "f64") else x
    outside: Value | None = None
    for target in work:
        size, axis = x.shape[target.axis], target.axis
        if not isinstance(size, int) or not isinstance(target.size, int):
            raise c.unsupported(f"coordinates '{coordinate}' of sizes that vary")
        places = _positions(size, target, coordinate)
        scale = float(target.scale) if target.scale is not None else target.size / size
        filter_ = _Filter(mode, nearest, c.attr("cubic_coeff_a", -0.75), bool(c.attr("exclude_outside", 0)))
        matrix = filter_.matrix(places, size, min(scale, 1.0) if c.attr("antialias", 0) else 1.0)
        last = len(x.shape) - 1
        perm = [i for i in range(last + 1) if i != axis] + [axis]
        y = c.permuted(y, perm)
        y = c.matmul(y, c.const(matrix.T.astype(DTYPES[y.dtype].numpy)))
        y = c.permuted(y, [perm.index(i) for i in range(last + 1)])
        if coordinate == "tf_crop_and_resize":
            beyond = (places < 0) | (places > size - 1)
            flag = c.shaped(c.const(beyond), [target.size] + [1] * (last - axis))
            outside = flag if outside is None else c.logical_or(outside, flag)
    if outside is not None:
        y = c.where(outside, c.scalar(c.attr("extrapolation_value", 0.0), y), y)
    return c.to(y, dtype)


def _positions(size: int, target: _Axis, coordinate: str) -> np.ndarray:
    """Where each target element lies in the source."""
    i = np.arange(target.size, dtype=np.float64)
    scale = float(target.scale) if target.scale is not None else target.size / size
    if coordinate == "tf_crop_and_resize":
        start, end = target.roi
        if target.size == 1:
            return np.full(1, 0.5 * (start + end) * (size - 1))
        return start * (size - 1) + i * (end - start) * (size - 1) / (target.size - 1)
    if coordinate == "half_pixel_symmetric":
        adjustment = target.size / (scale * size)
        return size / 2 * (1 - adjustment) + (i + 0.5) / scale - 0.5
    if coordinate == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if coordinate == "align_corners":
        return i * (size - 1) / (scale * size - 1) if scale * size != 1 else np.zeros_like(i)
    if coordinate == "asymmetric":
        return i / scale
    if coordinate in ("half_pixel", "pytorch_half_pixel"):
        return np.zeros(1) if target.size == 1 and coordinate != "half_pixel" else (i + 0.5) / scale - 0.5
    raise ValueError(f"there are no coordinates '{coordinate}'")


@dataclass(frozen=True)
class _Filter:
    """An interpolation; elements outside are the edge's, or have no weight."""

    mode: str
    nearest: str
    cubic_coeff_a: float
    excludes_outside: bool

    def matrix(self, places: np.ndarray, size: int, scale: float) -> np.ndarray:
        """The weights [target, source]; a scale below 1 widens the filter."""
        matrix = np.zeros((len(places), size))
        lines = np.arange(len(places))
        if self.mode == "nearest":
            rounding: dict[str, Callable[[np.ndarray], np.ndarray]] = {"floor": np.floor, "ceil": np.ceil}
            rounding["round_prefer_floor"] = lambda p: np.ceil(p - 0.5)
            rounding["round_prefer_ceil"] = lambda p: np.floor(p + 0.5)
            matrix[lines, np.clip(rounding[self.nearest](places), 0, size - 1).astype(int)] = 1
            return matrix
        base = np.floor(places)
        reach = int(np.ceil((1 if self.mode == "linear" else 2) / scale))
        for tap in range(1 - reach, reach + 1):
            distance = np.abs(places - base - tap) * scale
            weight = np.maximum(1 - distance, 0) if self.mode == "linear" else _cubic(distance, self.cubic_coeff_a)
            at = base + tap
            if self.excludes_outside:
                weight = np.where((at >= 0) & (at < size), weight, 0)
            np.add.at(matrix, (lines, np.clip(at, 0, size - 1).astype(int)), weight)
        return matrix / matrix.sum(1, keepdims=True)


def _cubic(d: np.ndarray, a: float) -> np.ndarray:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


# --- sampling at computed places ---

_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@row("GridSample")
def _grid_sample(c: Call, x: Value, grid: Value) -> Value:
    mode = c.attr("mode", "bilinear" if c.version < 20 else "linear")
    padding, corners = c.attr("padding_mode", "zeros"), bool(c.attr("align_corners", 0))
    return c.grid_sample(
        x, c.to(grid, x.dtype), mode=_GRID_MODES.get(mode, mode), padding_mode=padding, align_corners=corners
    )


@row("RoiAlign")
def _roi_align(c: Call, x: Value, rois: Value, batch: Value) -> Value:
    """Each region's bins are means (or maxima) of samples, read by four gathers a sample."""
    samples = c.attr("sampling_ratio", 0)
    if samples <= 0:
        raise c.unsupported("sampling_ratio 0: the number of samples would depend on the regions")
    height, width = c.attr("output_height", 1), c.attr("output_width", 1)
    half = c.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel" and c.version >= 16
    count = rois.shape[0]
    scaled = c.mul(rois, c.scalar(c.attr("spatial_scale", 1.0), rois))
    scaled = c.sub(scaled, c.scalar(0.5, rois)) if half else scaled

    def places(first: int, bins: int) -> Value:
        """[regions, bins * samples] positions along one axis."""
        start, end = (c.sliced(scaled, 1, i, i + 1) for i in (first, first + 2))
        extent = c.sub(end, start) if half else c.maximum(c.sub(end, start), c.scalar(1, rois))
        steps = (np.arange(bins * samples) + 0.5) / (bins * samples)
        return c.add(start, c.mul(extent, c.const(steps.astype(DTYPES[rois.dtype].numpy))))

    rows, cols = (places(1, height), x.shape[2]), (places(0, width), x.shape[3])
    averages = c.attr("mode", "avg") == "avg"
    y = _bilinear_at(c, x, c.to(batch, "i64"), rows, cols, count, "add" if averages else "maximum")
    y = c.shaped(y, [count, height, samples, width, samples, x.shape[1]])
    y = c.importer.emit("mean" if averages else "max", y, axes=[2, 4], keepdims=False)
    return c.transpose(y, perm=[0, 3, 1, 2])


def _bilinear_at(c: Call, x: Value, batch: Value, rows: tuple, cols: tuple, count: Any, joins: str) -> Value:
    """[regions, rows, cols, channels] of x between its pixels; zero more than one pixel outside.

    `joins` is "add", or "maximum": ONNX's max mode takes the largest of the weighted corners, not of the samples.
    """
    flat = c.shaped(c.transpose(x, perm=[0, 2, 3, 1]), [x.shape[0] * x.shape[2] * x.shape[3], x.shape[1]])
    (y_low, y_high, y_part, y_in), (x_low, x_high, x_part, x_in) = (_split_place(c, *axis) for axis in (rows, cols))
    high, wide = rows[0].shape[1], cols[0].shape[1]
    image = c.mul(c.shaped(batch, [count, 1, 1]), c.importer.materialize_size(x.shape[2] * x.shape[3]))
    total = None
    for is_below, is_right in ((False, False), (False, True), (True, False), (True, True)):
        line, column = y_high if is_below else y_low, x_high if is_right else x_low
        at = c.mul(c.shaped(line, [count, high, 1]), c.importer.materialize_size(x.shape[3]))
        index = c.add(c.add(at, image), c.shaped(column, [count, 1, wide]))
        down = y_part if is_below else c.sub(c.scalar(1, y_part), y_part)
        right = x_part if is_right else c.sub(c.scalar(1, x_part), x_part)
        down = c.shaped(c.mul(down, y_in), [count, high, 1, 1])
        weight = c.mul(down, c.shaped(c.mul(right, x_in), [count, 1, wide, 1]))
        term = c.mul(c.gather(flat, index, axis=0), c.to(weight, x.dtype))
        total = term if total is None else c.importer.emit(joins, total, term)
    return total


def _split_place(c: Call, place: Value, size: Any) -> tuple[Value, Value, Value, Value]:
    """(element below, element above, how far between, 1 where inside) of positions along one axis."""
    extent = c.to(c.importer.materialize_size(size), place.dtype)
    inside = c.logical_and(c.ge(place, c.scalar(-1, place)), c.le(place, extent))
    last = c.sub(extent, c.scalar(1, place))
    clamped = c.minimum(c.maximum(place, c.scalar(0, place)), last)
    below = c.floor(clamped)
    above = c.minimum(c.add(below, c.scalar(1, place)), last)
    return c.to(below, "i64"), c.to(above, "i64"), c.sub(clamped, below), c.to(inside, place.dtype)
