"""Elementwise ops (thin start)."""
from __future__ import annotations

import numpy as np

from .op import op


@op(torch="aten.relu.default", onnx="Relu")
def relu(x: N[*S]) -> N[*S]:
    """max(x, 0), elementwise; NaN stays NaN. Source: ONNX Relu-14."""
    return np.maximum(x, 0)


@op()
def add(a: T[*S], b: T[*S]) -> T[*S]:
    """a + b. Source: ONNX Add-14."""
    return np.add(a, b)
