"""Machine: the facts about a target that passes may read, to and from the module attribute `mlc.machine`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from mlir import ir

from .types import DTYPES

_ATTR = "mlc.machine"


def register_tile(registers: int, vector_bits: int) -> tuple[int, int]:
    """Rows and vectors of sums that a product's inner loop keeps in registers.

    All but a few registers hold sums, and loads stay under one a multiply-add: 6x2 of 16 registers, 8x3 of 32, and 14x2
    where a load of a vector touches a whole cache line.
    """
    if registers < 32:
        return 6, 2
    return (14, 2) if vector_bits >= 512 else (8, 3)


@dataclass(frozen=True)
class Machine:
    """A CPU to compile for. Sizes in bytes and bits; nothing here depends on the host.

    `llc_bytes` is the last cache before memory, as far as one core may fill it.
    `vector_bits` is the register width; `is_scalable` code is written over scalable types for that one width, which the
    loader checks. `features` are LLVM's names of what the code may use and the loader checks. `cpu` is LLVM's -mcpu.
    `dot` is the instruction that adds the products of two pairs of bf16 to a sum of f32: "vdpbf16ps", "bfdot", "" for
    none, or "fma" for the two multiply-adds that it stands for, which tests run anywhere.
    """

    name: str
    family: str = "cpu"
    arch: str = "x86_64"
    triple: str = "x86_64-linux-gnu"
    cpu: str = "x86-64-v3"
    vector_bits: int = 256
    is_scalable: bool = False
    registers: int = 16
    l1_bytes: int = 32768
    l1_ways: int = 8
    l2_bytes: int = 524288
    llc_bytes: int = 32 << 20
    features: tuple[str, ...] = ()
    dot: str = ""

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and vectors of the register tile."""
        return register_tile(self.registers, self.vector_bits)

    def has_dot(self, dtype: str) -> bool:
        """Whether products of `dtype` are summed in f32 by pairs."""
        return bool(self.dot) and dtype == "bf16"

    def rows_collide(self, stride_bytes: int) -> bool:
        """Whether the rows of a register tile, so far apart, take every line of a set of the first-level cache: what
        streams past them then evicts lines that are still to be read. Seven of eight run at full speed (Zen 4)."""
        way = self.l1_bytes // self.l1_ways
        sets = way // math.gcd(stride_bytes, way)
        return -(-self.tile[0] // sets) >= self.l1_ways

    def panel_columns(self, dtype: str) -> int:
        """Columns of a packed panel, the width of the register tile; narrow types are computed in 32 bits."""
        return self.tile[1] * (self.vector_bits // max(DTYPES[dtype].bits, 32))

    def attach(self, module: ir.Module) -> None:
        """Writes the facts to `module`."""
        with module.context:
            i64 = ir.IntegerType.get_signless(64)
            entries: dict[str, ir.Attribute] = {}
            for field in fields(self):
                value = getattr(self, field.name)
                if isinstance(value, bool):
                    entries[field.name] = ir.BoolAttr.get(value)
                elif isinstance(value, int):
                    entries[field.name] = ir.IntegerAttr.get(i64, value)
                elif isinstance(value, str):
                    entries[field.name] = ir.StringAttr.get(value)
                else:
                    entries[field.name] = ir.ArrayAttr.get([ir.StringAttr.get(v) for v in value])
            module.operation.attributes[_ATTR] = ir.DictAttr.get(entries)

    @staticmethod
    def of(module: ir.Module) -> Machine:
        """The facts in `module`. Raises ValueError when it names no machine."""
        attributes = module.operation.attributes
        if _ATTR not in attributes:
            raise ValueError(f"the module has no {_ATTR} attribute: compile for a target, or add one to the .mlir")
        values: dict[str, object] = {}
        for named in ir.DictAttr(attributes[_ATTR]):
            attr = named.attr
            values[named.name] = (
                tuple(ir.StringAttr(a).value for a in attr) if isinstance(attr, ir.ArrayAttr) else attr.value
            )
        return Machine(**values)  # type: ignore[arg-type]
