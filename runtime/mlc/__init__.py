"""mlc: compiles models ahead of time, and runs what it compiled.

`mlc.load` runs a compiled artifact; `mlc.compile` makes one. Importing this imports nothing else: numpy comes with
load, and MLIR, torch and the like at most with compile (test/runtime/test_runtime.py holds it to that).
"""

from typing import Any

_HOMES = {
    "load": "mlc.loader",
    "Model": "mlc.loader",
    "MlcError": "mlc.loader",
    "compile": "mlc.tools.driver",
    "Artifact": "mlc.tools.driver",
    "save": "mlc.tools.driver",
    "import_op": "mlc.frontend.custom_ops",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlc' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
