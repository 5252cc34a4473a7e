"""Weights: bytes that live beside the module, never printed into the IR.

A module names its store in the attribute `mlc.weights`. A weight is an array or a function that makes one when asked (a
derived weight: packed, transposed, folded), so that nothing large is held twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
from mlir import ir

_ATTR = "mlc.weights"
_STORES: dict[str, WeightStore] = {}
_serial = count()


class WeightStore:
    """Arrays by name. Array memory is borrowed (often a mapped file); derived arrays are made on each `get`."""

    def __init__(self) -> None:
        self._entries: dict[str, np.ndarray | Callable[[], np.ndarray]] = {}

    def add(self, name: str, source: np.ndarray | Callable[[], np.ndarray]) -> str:
        """Stores under `name`, or a numbered variant of it when taken; returns the name used."""
        unique, number = name, 1
        while unique in self._entries:
            unique, number = f"{name}.{number}", number + 1
        self._entries[unique] = source
        return unique

    def get(self, name: str) -> np.ndarray:
        """Raises KeyError for an unknown name."""
        entry = self._entries[name]
        return entry() if callable(entry) else entry

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def attach(self, module: ir.Module) -> None:
        """Makes this the store of `module`."""
        key = f"#{next(_serial)}"
        _STORES[key] = self
        module.operation.attributes[_ATTR] = ir.StringAttr.get(key, module.context)

    def release(self) -> None:
        """Forgets the store, so that its memory can go."""
        for key in [k for k, v in _STORES.items() if v is self]:
            del _STORES[key]


def store_of(module: ir.Module) -> WeightStore:
    """The store that `module` names: one attached in this process, or an `.npz` file named by a dump."""
    attributes = module.operation.attributes
    if _ATTR not in attributes:
        store = WeightStore()
        store.attach(module)
        return store
    key = ir.StringAttr(attributes[_ATTR]).value
    if key not in _STORES:
        _STORES[key] = _read(key)
    return _STORES[key]


def _read(key: str) -> WeightStore:
    store = WeightStore()
    if Path(key).is_file():
        with np.load(key) as arrays:
            for name in arrays.files:
                store.add(name, arrays[name])
    return store
