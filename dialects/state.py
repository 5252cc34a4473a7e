"""States of a model: tensors that are kept from run to run.

They are the last arguments of `@forward` and, in the same order, its last results; `mlc.states` has their names and
`mlc.initial` the weights that they begin as. In memory they lie one after another, each from a line on; programs that
share states, the methods of one file, have them in one memory, where `mlc.state_offsets` says.
"""

from __future__ import annotations

import numpy as np
from mlir import ir

from .build import type_of
from .types import TensorType
from .weights import WeightStore

STATE_ALIGN_BYTES = 64


def state_count(forward: ir.Operation) -> int:
    """How many states `@forward` has."""
    return len(ir.ArrayAttr(forward.attributes["mlc.states"])) if "mlc.states" in forward.attributes else 0


def state_offsets(forward: ir.Operation) -> list[int]:
    """Where each state lies in the memory for all of them, in bytes. Raises ValueError for one of unknown size."""
    if "mlc.state_offsets" in forward.attributes:  # of a program that shares its states with others
        return list(ir.DenseI64ArrayAttr(forward.attributes["mlc.state_offsets"]))
    offsets, end = [], 0
    for type_ in _types(forward):
        offsets.append(end)
        end += _room(type_)
    return offsets


def _types(forward: ir.Operation) -> list[TensorType]:
    count = state_count(forward)
    return [type_of(state) for state in list(forward.regions[0].blocks[0].arguments)[-count:]] if count else []


def _room(type_: TensorType) -> int:
    if not isinstance(type_.bytes, int):
        raise ValueError(f"a state of type {type_}: its sizes must be numbers")
    return -(-type_.bytes // STATE_ALIGN_BYTES) * STATE_ALIGN_BYTES


class StateLayout:
    """One memory for the states of several programs: those of one name are one state."""

    def __init__(self) -> None:
        self.types: dict[str, TensorType] = {}
        self._offsets: dict[str, int] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._end = 0

    def add(self, forward: ir.Operation, store: WeightStore) -> None:
        """Places the states of a program and notes where on it. Raises ValueError for one that is another state of
        the same name."""
        if not state_count(forward):
            return
        names = [ir.StringAttr(name).value for name in ir.ArrayAttr(forward.attributes["mlc.states"])]
        initial = [store.get(ir.StringAttr(name).value) for name in ir.ArrayAttr(forward.attributes["mlc.initial"])]
        for name, type_, array in zip(names, _types(forward), initial, strict=True):
            if name not in self.types:
                self.types[name], self._arrays[name] = type_, np.ascontiguousarray(array)
                self._offsets[name] = self._end
                self._end += _room(type_)
            elif type_ != self.types[name] or array.tobytes() != self._arrays[name].tobytes():
                raise ValueError(f"its state {name} is another one than that of a method before it")
        offsets = [self._offsets[name] for name in names]
        forward.attributes["mlc.state_offsets"] = ir.DenseI64ArrayAttr.get(offsets)

    def initial(self) -> list[tuple[int, np.ndarray]]:
        """What states begin as, at their offsets; those of zeros left out."""
        rows = [(self._offsets[name], array) for name, array in self._arrays.items()]
        return [(at, array) for at, array in rows if array.reshape(-1).view(np.uint8).any()]
