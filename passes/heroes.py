"""Which ops have an emitter of their own in every family, and in which form."""

from __future__ import annotations

from mlc.dialects.build import attrs_of, type_of
from mlir import ir


def is_tiled(operation: ir.Operation) -> bool:
    """Whether families have a register-tile emitter for the op in this form."""
    if operation.name in ("mlc.matmul", "mlc.packed_matmul"):
        return True
    if operation.name == "mlc.conv_winograd":
        return True
    if operation.name == "mlc.conv":
        w = operation.operands[1].owner
        return (
            attrs_of(operation)["layout"] == "nhwc" and not isinstance(w, ir.Block) and w.operation.name == "mlc.weight"
        )
    if operation.name == "mlc.attention":
        q, k, v = (type_of(x).shape for x in list(operation.operands)[:3])
        return all(isinstance(s, int) for s in (q[-3], k[-3], q[-1], v[-1])) and max(q[-1], v[-1]) <= _HEAD_MAX
    return False


# Wider heads do not leave room for a block of keys on the stack (targets keep theirs to 64 KiB).
_HEAD_MAX = 256
