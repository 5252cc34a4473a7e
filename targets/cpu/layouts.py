"""The byte layouts of packed weights, by the names that emitters and passes/pack_weights.py give."""

from __future__ import annotations

import numpy as np
from mlc.dialects.types import dtype_of_numpy

from .conv import pack_conv_layout
from .isa.facts import Isa
from .isa.memory import sum_dtype
from .packing import PAIRED, pack_b
from .recurrent import pack_gates


def pack_weight(layout: str, array: np.ndarray, isa: Isa) -> np.ndarray:
    """The bytes of a weight as `layout` lays it out; as it is for an empty layout."""
    dtype = dtype_of_numpy(array.dtype)
    if layout.startswith("conv-"):
        return pack_conv_layout(isa, layout, array, dtype)
    if layout.startswith("gates-"):
        return pack_gates(layout, array, isa, dtype)
    if layout.startswith("panels"):
        columns = isa.panel_columns(sum_dtype(dtype))
        return pack_b(array, columns, "transposed" in layout, layout.endswith(PAIRED))
    return np.ascontiguousarray(array)
