"""Isa: the few numbers of a CPU that decide the shape of its kernels."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects.machine import register_tile
from mlc.dialects.types import DTYPES
from mlc.dialects.val import compute_type
from mlir import ir


@dataclass(frozen=True)
class Isa:
    """Vector length, registers and caches of one machine.

    `vector_bits` is the length that the machine has, also where `is_scalable`: code is then over scalable types, while
    layouts and loop steps use the known length.
    """

    vector_bits: int = 256
    register_count: int = 16
    is_scalable: bool = False
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 512 * 1024
    llc_bytes: int = 32 << 20
    dot: str = ""  # see dialects/machine.py

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype`, as computed, in a vector register."""
        return self.vector_bits // max(DTYPES[dtype].bits, 32)

    def vector(self, element: ir.Type, dtype: str) -> ir.VectorType:
        """A vector of `element` with as many lanes as a register holds of `dtype`."""
        lanes = self.lanes(dtype)
        if self.is_scalable:
            return ir.VectorType.get([lanes * 128 // self.vector_bits], element, scalable=[True])
        return ir.VectorType.get([lanes], element)

    def compute_vector(self, dtype: str) -> ir.VectorType:
        """The register type of `dtype`."""
        return self.vector(compute_type(dtype), dtype)

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and vectors of the register tile."""
        return register_tile(self.register_count, self.vector_bits)

    def panel_columns(self, dtype: str) -> int:
        """Columns of a packed panel: the width of the register tile."""
        return self.tile[1] * self.lanes(dtype)
