"""States of a loaded model: tensors that its runs keep and change, as arrays over the memory that they lie in.

May import numpy, never the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ctypes import byref
from typing import TYPE_CHECKING, Any

import numpy as np

from mlc import native, tensors

if TYPE_CHECKING:
    from mlc.loader import Model
    from mlc.session import Session

ALIGN_BYTES = 64


class States(Mapping[str, np.ndarray[Any, Any]]):
    """`states[name]` is the state itself, a numpy array that the next run reads: write to it in place, or assign.

    Not while a run is under way.
    """

    def __init__(self, model: Model, session: Session) -> None:
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        for index, row in enumerate(model.states):
            tensor = native.sized(native.Tensor)
            session.check(model._library.mlc_session_state(session.handle, index, byref(tensor)))
            first = tensor.data - tensors.address(model._state_memory) if tensor.size_bytes else 0
            block = model._state_memory[first : first + tensor.size_bytes]
            self._arrays[row.name] = block.view(tensors.numpy_dtype(row.dtype)).reshape(tensor.shape[: tensor.rank])

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self._arrays[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Copies `value`, which broadcasts, into the state. Raises KeyError for a name that is none."""
        self._arrays[name][...] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
