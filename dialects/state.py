"""States of a model: tensors that are kept from run to run.

They are the last arguments of `@forward` and, in the same order, its last results; `mlc.states` has their names and
`mlc.initial` the weights that they begin as. In memory they lie one after another, each from a line on.
"""

from __future__ import annotations

from mlir import ir

from .build import type_of

STATE_ALIGN_BYTES = 64


def state_count(forward: ir.Operation) -> int:
    """How many states `@forward` has."""
    return len(ir.ArrayAttr(forward.attributes["mlc.states"])) if "mlc.states" in forward.attributes else 0


def state_offsets(forward: ir.Operation) -> list[int]:
    """Where each state lies in the memory for all of them, in bytes. Raises ValueError for one of unknown size."""
    count = state_count(forward)
    offsets, end = [], 0
    for state in list(forward.regions[0].blocks[0].arguments)[-count:] if count else []:
        size = type_of(state).bytes
        if not isinstance(size, int):
            raise ValueError(f"a state of type {type_of(state)}: its sizes must be numbers")
        offsets.append(end)
        end += -(-size // STATE_ALIGN_BYTES) * STATE_ALIGN_BYTES
    return offsets
