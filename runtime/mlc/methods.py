"""A file of several methods, such as a prefill and a decode, loaded once: they share weights, threads and states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlc.loader import Model
    from mlc.state import States


class Methods:
    """`program.prefill(...)` calls the method of that name; `program["prefill"]` is its `Model`.

    `state` and `reset()` are of the states of all methods.
    """

    def __init__(self, models: dict[str, Model], owner: Model) -> None:
        self._models, self._owner = models, owner

    @property
    def names(self) -> tuple[str, ...]:
        """The methods, in the file's order."""
        return tuple(self._models)

    @property
    def state(self) -> States:
        """The states by name, as arrays to read and to write between runs."""
        return self._owner.state

    def reset(self) -> None:
        """Makes the states what they were before the first run."""
        self._owner.reset()

    def __getitem__(self, name: str) -> Model:
        return self._models[name]

    def __getattr__(self, name: str) -> Model:
        models: dict[str, Any] = self.__dict__.get("_models", {})
        if name not in models:
            raise AttributeError(f"the file has no method {name!r}; it has {', '.join(models)}")
        found: Model = models[name]
        return found

    def close(self) -> None:
        """Ends the threads and unmaps the code now. No call may be under way."""
        for model in self._models.values():
            model.close()
        self._owner.close()

    def __enter__(self) -> Methods:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"mlc.Methods({', '.join(f'{name}={model!r}' for name, model in self._models.items())})"
