"""The step of the register tile that takes k by pairs of bf16: each lane adds two products to its sum of f32.

Rows hold pairs side by side in memory; a panel holds, for each pair of k, the two elements of every column side by
side: [k / 2][columns][2]. An odd k ends with a pair whose second elements are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.dialects.val import constant_of
from mlir import ir
from mlir.dialects import arith, llvm, vector

from .isa import index
from .isa.facts import Isa
from .isa.index import Size
from .isa.memory import offset_ptr, splat

_PAIR = "bf16"


def pair_count(k: Size) -> Size:
    """Pairs that hold so many steps of k."""
    return index.ceil_div(k, 2)


def load_pairs(isa: Isa, ptr: ir.Value, alignment: int) -> ir.Value:
    """A register of pairs, one a lane of f32, as i32."""
    return llvm.LoadOp(isa.vector(_i32(), "f32"), ptr, alignment=alignment).result


def load_factor(isa: Isa, ptr: ir.Value, is_single: bool) -> ir.Value:
    """The pair at `ptr` in every lane; only its first element where the row ends there."""
    if is_single:
        element = llvm.LoadOp(ir.IntegerType.get_signless(16), ptr, alignment=2).result
        pair = arith.extui(_i32(), element)
    else:
        pair = llvm.LoadOp(_i32(), ptr, alignment=2).result
    return splat(isa, pair, "f32")


def dot_step(
    isa: Isa, pointers: Sequence[ir.Value], panel: ir.Value, vecs: int, state: Sequence[ir.Value], is_single: bool
) -> list[ir.Value]:  # fmt: skip
    """`state` plus the pair at each row's pointer times the panel's pairs at `panel`, aligned to its registers."""
    lanes = isa.lanes("f32")
    vectors = [load_pairs(isa, offset_ptr(panel, 2 * v * lanes, _PAIR), 4 * lanes) for v in range(vecs)]
    result: list[ir.Value] = []
    for r, pointer in enumerate(pointers):
        factor = load_factor(isa, pointer, is_single)
        result.extend(_dot(isa, factor, vector, state[r * vecs + v]) for v, vector in enumerate(vectors))
    return result


def _dot(isa: Isa, left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
    if isa.dot == "fma":
        return _two_products(left, right, total)
    pairs = _pairs_type(isa)
    name = {"vdpbf16ps": f"llvm.x86.avx512bf16.dpbf16ps.{isa.vector_bits}", "bfdot": _bfdot(isa)}[isa.dot]
    factors = [llvm.bitcast(pairs, factor) for factor in (left, right)]
    return llvm.call_intrinsic(total.type, ir.StringAttr.get(name), [total, *factors], [], [])


def _bfdot(isa: Isa) -> str:
    return "llvm.aarch64.sve.bfdot" if isa.is_scalable else "llvm.aarch64.neon.bfdot.v4f32.v8bf16"


def _pairs_type(isa: Isa) -> ir.VectorType:
    lanes = 2 * isa.lanes("f32")
    if isa.is_scalable:
        return ir.VectorType.get([lanes * 128 // isa.vector_bits], ir.BF16Type.get(), scalable=[True])
    return ir.VectorType.get([lanes], ir.BF16Type.get())


def _two_products(left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
    """What the instruction stands for, a rounding after each product."""
    for part in (_first, _second):
        total = vector.fma(part(left, total.type), part(right, total.type), total)
    return total


def _first(pairs: ir.Value, type_: ir.Type) -> ir.Value:
    return arith.bitcast(type_, arith.shli(pairs, constant_of(pairs.type, 16)))


def _second(pairs: ir.Value, type_: ir.Type) -> ir.Value:
    return arith.bitcast(type_, arith.andi(pairs, constant_of(pairs.type, -65536)))


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(32)
