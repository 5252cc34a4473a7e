"""Results that no cache would keep: their stores go past the caches, which saves reading each line before it is
overwritten.

A line that is only written costs two transfers through the caches, read and write back, and one past them. It pays
where the result is evicted before its reader comes anyway, which is decided by what the kernel moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from mlc.dialects import dims
from mlc.dialects.build import type_of
from mlc.dialects.dims import Size
from mlc.dialects.types import DTYPES
from mlc.dialects.val import Val
from mlir import ir
from mlir.dialects import llvm

from .index import i64
from .kernel import LINE_BYTES, Buffer, Kernel

# Of the last-level cache: a kernel that moves more leaves none of its result there for the next one.
_CACHE_SHARE = 2
# How far ahead streams are asked for: arithmetic fills the window in which a core would find the next reads itself, and
# its own prefetchers stop at the end of a page.
AHEAD_BYTES = 2048
_LEAST_BYTES = 16  # of the instructions that store so


def bytes_of(value: ir.Value) -> Size:
    return dims.product(type_of(value).shape) * DTYPES[type_of(value).dtype].bytes


def streamed(k: Kernel, target: Buffer, values: Iterable[ir.Value], shape: Sequence[Size]) -> Buffer:
    """`target`, written past the caches where `values`, all that the kernel reads and writes, outgrow them.

    `shape` is the index space of its stores, lanes along the last dimension: each must begin aligned.
    """
    element_bytes = DTYPES[target.dtype].bytes
    vector_bytes = k.lanes * element_bytes
    written = dims.product(shape) * element_bytes
    if not isinstance(written, int):
        return target
    # Of a table only some is read: at most a few times what is written counts.
    total = sum(min(size, 4 * written) for value in values if isinstance(size := bytes_of(value), int))
    if total * _CACHE_SHARE <= k.isa.llc_bytes or not _LEAST_BYTES <= vector_bytes <= LINE_BYTES:
        return target
    strides = [s for s, size in zip(target.view.strides, shape, strict=True) if size != 1]
    if not strides or strides[-1] != 1:
        return target
    if any(not isinstance(s, int) or s * element_bytes % vector_bytes for s in (*strides[:-1], target.view.offset)):
        return target
    return replace(target, is_streamed=True)


def vectors_a_line(k: Kernel, target: Buffer) -> int:
    """How many vectors to store together: a line written past the caches in parts costs a transfer for each."""
    if not target.is_streamed:
        return 1
    return max(1, LINE_BYTES // (k.lanes * DTYPES[target.dtype].bytes))


def emit_streamed(k: Kernel, target: Buffer, emit: Callable[[Buffer], None], ahead_bytes: int = 0) -> None:
    """`emit(target)`, or the same with ordinary stores where the caller's memory does not begin with a line.

    `ahead_bytes`: how far its reads prefetch. What was written past the caches is ordered before the flag that says
    that the kernel is done.
    """
    if not target.is_streamed:
        emit(target)
        return

    def past_caches() -> None:
        k.ahead_bytes = {buffer.pointer: ahead_bytes for buffer in k.buffers.values() if ahead_bytes}
        emit(target)
        k.ahead_bytes = {}
        llvm.fence(llvm.AtomicOrdering.seq_cst)

    address = Val(llvm.ptrtoint(i64(), target.pointer), "i64")
    k.when((address & (LINE_BYTES - 1)).eq(0), past_caches, lambda: emit(replace(target, is_streamed=False)))
