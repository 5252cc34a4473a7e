"""ONNX signal ops: DFT and STFT as products with cosines and sines, mel filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from mlc.dialects.types import DTYPES
from mlc.frontend import onnx_fold
from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.onnx_ops_conv import Window, convolve
from mlc.frontend.shape_values import Known

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


@row("DFT")
def _dft_attribute(c: Call, x: Value, length: Known | None = None) -> Value:
    return _dft(c, x, length, c.attr("axis", 1))


@row("DFT", since=20)
def _dft_input(c: Call, x: Value, length: Known | None = None, axis: Known | None = None) -> Value:
    return _dft(c, x, length, -2 if axis is None else int(axis.item()))


def _dft(c: Call, x: Value, length: Known | None, axis: int) -> Value:
    axis, inverse, onesided = c.axis(x, axis), bool(c.attr("inverse", 0)), bool(c.attr("onesided", 0))
    to_real = inverse and onesided
    count = x.shape[axis]
    if not isinstance(count, int):
        raise c.unsupported(f"a transform over {count} elements: their number must be known")
    total = int(length.item()) if length is not None else (2 * (count - 1) if to_real else count)
    used = min(count, total // 2 + 1 if to_real else total)
    x = c.sliced(x, axis, 0, used)
    parts = [_component(c, x, i, axis) for i in range(x.shape[-1])]
    kept = total // 2 + 1 if onesided and not inverse else total
    angle = 2 * np.pi * np.outer(np.arange(used), np.arange(kept)) / total
    cosine, sine = np.cos(angle), np.sin(angle)
    if to_real:
        # A half spectrum stands for its mirror image too, but for the two lines that have none.
        twice = np.where((np.arange(used) == 0) | (2 * np.arange(used) == total), 1.0, 2.0)[:, None]
        cosine, sine = cosine * twice, sine * twice
    if inverse:
        cosine, sine = cosine / total, -sine / total
    matrices = [c.const(m.astype(DTYPES[x.dtype].numpy)) for m in (cosine, sine)]
    results = [c.matmul(parts[0], matrices[0])]
    if not to_real:
        results.append(c.neg(c.matmul(parts[0], matrices[1])))
    if len(parts) == 2:
        results[0] = c.add(results[0], c.matmul(parts[1], matrices[1]))
        if not to_real:
            results[1] = c.add(results[1], c.matmul(parts[1], matrices[0]))
    rank = len(x.shape) - 1
    back = [*range(axis), rank - 1, *range(axis, rank - 1)]
    outputs = [c.permuted(r, back) for r in results]
    outputs = [c.shaped(r, [*r.shape, 1]) for r in outputs]
    return outputs[0] if to_real else c.concat(*outputs, axis=rank)


def _component(c: Call, x: Value, index: int, axis: int) -> Value:
    """The real (0) or imaginary (1) part, with the transformed axis last."""
    rank = len(x.shape) - 1
    part = c.shaped(c.sliced(x, rank, index, index + 1), x.shape[:-1])
    return c.permuted(part, [i for i in range(rank) if i != axis] + [axis])


@row("STFT")
def _stft(c: Call, x: Value, step: Known, window: Value | None = None, frame: Known | None = None) -> Value:
    """Each output line is a strided correlation of the signal with a windowed cosine or sine."""
    size = int(frame.item()) if frame is not None else window.shape[0] if window is not None else None
    if not isinstance(size, int):
        raise c.unsupported("frames of unknown length")
    kept = size // 2 + 1 if c.attr("onesided", 1) else size
    angle = 2 * np.pi * np.outer(np.arange(kept), np.arange(size)) / size
    waves = np.concatenate([np.cos(angle), -np.sin(angle)])[:, None, :].astype(DTYPES[x.dtype].numpy)
    weight = c.const(waves)
    if window is not None:
        weight = c.mul(weight, _padded_window(c, window, size))
    place = Window([size], [int(step.item())], [1], [0], [0])
    signal = x if len(x.shape) == 3 else c.shaped(x, [*x.shape, 1])
    parts = [c.sliced(signal, 2, i, i + 1) for i in range(signal.shape[2])]
    lines = [convolve(c, c.permuted(part, [0, 2, 1]), weight, None, place, 1) for part in parts]
    real, imaginary = _halves(c, lines[0], kept)
    if len(lines) == 2:
        more_real, more_imaginary = _halves(c, lines[1], kept)
        real, imaginary = c.sub(real, more_imaginary), c.add(imaginary, more_real)
    joined = [c.shaped(v, [*v.shape, 1]) for v in (real, imaginary)]
    return c.transpose(c.concat(*joined, axis=3), perm=[0, 2, 1, 3])


def _padded_window(c: Call, window: Value, size: int) -> Value:
    """A window shorter than its frame stands in the middle of it."""
    spare = size - window.shape[0]
    if spare == 0:
        return window
    return c.pad(window, low=[spare // 2], high=[spare - spare // 2], mode="constant", value=0.0)


def _halves(c: Call, x: Value, kept: int) -> tuple[Value, Value]:
    return c.sliced(x, 1, 0, kept), c.sliced(x, 1, kept, 2 * kept)


@row("MelWeightMatrix")
def _mel(c: Call, bins: Known, length: Known, rate: Known, low: Known, high: Known) -> Known:
    found = onnx_fold.run_reference(c.node, [bins, length, rate, low, high])
    if found is None:
        raise c.unsupported("this use of it")
    return found[0]
