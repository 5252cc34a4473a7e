"""The plain graph record that both torch readers fill. Imports neither torch nor mlir."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

# Element types by their mlc name. Complex and float8 are read, so that an error can name the op that uses them.
NUMPY_DTYPES: dict[str, np.dtype] = {
    name: np.dtype(kind)
    for name, kind in {
        "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
        "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8,
        "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "bool": np.bool_,
        "c64": np.complex64, "c128": np.complex128,
        "f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
        "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
        "f8e8m0fnu": ml_dtypes.float8_e8m0fnu,
    }.items()
}  # fmt: skip

Size = int | str
"""A dimension: a number, or an integer expression over symbols ("2*s0 + 1", with +, *, //, %, max, min)."""


@dataclass(frozen=True)
class Ref:
    """The use of a value (a tensor or a symbolic scalar) by its name in the graph."""

    name: str


@dataclass(frozen=True)
class Scalar:
    """A dtype given as an argument ("f32")."""

    dtype: str


@dataclass(frozen=True)
class Loc:
    """Where the user's model says it: source line and module path ("encoder.layer.0.attention")."""

    file: str = ""
    line: int = 0
    function: str = ""
    module: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else ""
        return " ".join(part for part in (place, f"in {self.module}" if self.module else "") if part) or "unknown line"


@dataclass(frozen=True)
class Value:
    """A tensor (`shape` is a tuple) or a symbolic scalar (`shape` is None and `expr` holds its expression)."""

    name: str
    dtype: str
    shape: tuple[Size, ...] | None
    expr: Size | float | bool | None = None


Arg = Any
"""None, bool, int, float, complex, str, Ref, Scalar, Graph, or a list (or dict by str) of these."""


@dataclass
class Node:
    """One call. `target` reads "aten.add.Tensor", "operator.mul" or "higher_order.cond".

    `outputs` has one entry a result: a name, a list of names (a list of tensors is one result), or None.
    """

    target: str
    args: list[Arg]
    kwargs: dict[str, Arg]
    outputs: list[Any]
    loc: Loc = Loc()

    def inputs(self) -> Iterator[Ref]:
        """Every value the node reads, in order; those that its subgraphs read come in as arguments."""
        yield from refs(self.args)
        yield from refs(self.kwargs)

    def output_names(self) -> list[str]:
        """Every value the node defines, lists flattened."""
        names: list[str] = []
        for output in self.outputs:
            names.extend(output if isinstance(output, list) else [] if output is None else [output])
        return names


@dataclass
class Graph:
    """Nodes in program order. `inputs` are Refs (or constants for placeholders without a value); `outputs` are Args."""

    inputs: list[Arg]
    outputs: list[Arg]
    nodes: list[Node]
    values: dict[str, Value]


@dataclass(frozen=True)
class Weight:
    """A tensor stored with the program: a view of its storage's bytes, mapped and never copied."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage_offset: int
    storage: bytes | memoryview | mmap.mmap | np.ndarray
    byte_offset: int = 0
    byte_count: int = -1

    @property
    def place(self) -> tuple[int, int]:
        """Where it begins: the same of tensors that share memory."""
        is_array = isinstance(self.storage, np.ndarray)
        memory = self.storage.ctypes.data if is_array else id(self.storage)  # type: ignore[union-attr]
        return memory + self.byte_offset if is_array else memory, 0 if is_array else self.byte_offset

    def array(self) -> np.ndarray:
        """The tensor as a read-only array over the stored bytes; strides are the file's own."""
        dtype = NUMPY_DTYPES[self.dtype]
        elems = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        if math.prod(self.shape) == 0:
            return np.empty(self.shape, dtype)
        end = (self.storage_offset + elems) * dtype.itemsize
        if min(self.strides, default=0) < 0 or self.storage_offset < 0 or 0 <= self.byte_count < end:
            wanted = f"{self.dtype}{list(self.shape)}"
            raise ReadError(f"a stored tensor of {self.byte_count} bytes is too short for {wanted}")
        first = self.byte_offset + self.storage_offset * dtype.itemsize
        flat = np.frombuffer(self.storage, dtype, elems, first)
        view = np.lib.stride_tricks.as_strided(flat, self.shape, [s * dtype.itemsize for s in self.strides])
        view.flags.writeable = False
        return view


@dataclass(frozen=True)
class Input:
    """One placeholder: `kind` is param, buffer or constant (all three named by `target`), user or fixed."""

    kind: str
    name: str
    target: str = ""
    value: Arg = None


@dataclass(frozen=True)
class Output:
    """One result: kind "user", or "buffer" / "user_input" for a mutation, whose `target` says of what."""

    kind: str
    arg: Arg
    target: str = ""


Tree = dict[str, Any]
"""{"kind": "tuple"|"list"|"dict"|"leaf"|"none", "items": [...], "keys": [...]}; leaves are in order."""


@dataclass
class Program:
    """A whole exported model. `source` names it in messages; `symbols` maps a name to (min, max or None)."""

    source: str
    graph: Graph
    inputs: list[Input]
    outputs: list[Output]
    symbols: dict[str, tuple[int, int | None]]
    weights: dict[str, Weight]
    input_tree: Tree = field(default_factory=lambda: {"kind": "dict", "keys": [], "items": []})
    output_tree: Tree = field(default_factory=lambda: {"kind": "tuple", "items": []})

    @property
    def user_inputs(self) -> list[str]:
        """Names of the inputs that a caller passes, in order."""
        return [spec.name for spec in self.inputs if spec.kind == "user"]


class ReadError(ValueError):
    """A model file that cannot be read; the message says what is wrong and what to do."""


def refs(arg: Arg) -> Iterator[Ref]:
    """Every value an argument uses, in order."""
    if isinstance(arg, Ref):
        yield arg
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from refs(item)
    elif isinstance(arg, dict):
        for item in arg.values():
            yield from refs(item)


def user_loc(frames: list[tuple[str, int, str]], module: str = "") -> Loc:
    """The innermost frame of the user's own code; without one, the innermost outside torch; else the innermost.

    `frames` are (file, line, function), outermost first.
    """

    def rank(file: str) -> int:
        if "/torch/" in file or file.startswith(("torch/", "<")):
            return 0
        return 1 if "site-packages/" in file or "dist-packages/" in file else 2

    if not frames:
        return Loc(module=module)
    best = max(rank(file) for file, _, _ in frames)
    file, line, function = next(frame for frame in reversed(frames) if rank(frame[0]) == best)
    return Loc(file, line, function, module)


def tree_of(spec: dict[str, Any], fields: dict[str, list[str]]) -> Tree:
    """Torch's pytree JSON (protocol 1, one node) as a Tree. `fields`: names of namedtuple fields by type."""
    kind = spec.get("type")
    if kind is None:
        return {"kind": "leaf"}
    items = [tree_of(child, fields) for child in spec.get("children_spec", [])]
    keys = _tree_keys(kind, spec.get("context"), fields)
    if keys is not None and len(keys) == len(items):
        return {"kind": "dict", "items": items, "keys": keys}
    return {"kind": "list" if kind.endswith(".list") else "tuple", "items": items}


def call_tree(args_and_kwargs: Tree, names: list[str] | None, inputs: list[Input]) -> Tree:
    """The tree of a call: a dict from argument name to the argument's own tree.

    `args_and_kwargs` is torch's ((args...), {kwargs...}), `names` the names of forward's arguments. Arguments that
    export fixed to None stay ("none"); those fixed to a number or text are no arguments any more.
    """
    leaves = iter([spec for spec in inputs if spec.kind in ("user", "fixed")])

    def filled(tree: Tree) -> Tree:
        if tree["kind"] != "leaf":
            return {**tree, "items": [filled(item) for item in tree["items"]]}
        spec = next(leaves, Input("fixed", ""))
        if spec.kind == "user":
            return {"kind": "leaf", "name": spec.name}
        return {"kind": "none"} if spec.value is None else {"kind": "fixed"}

    args, kwargs = (filled(part) for part in args_and_kwargs["items"])
    keys = list(names or [])[: len(args["items"])]
    for position in range(len(keys), len(args["items"])):
        keys.append(args["items"][position].get("name") or f"arg{position}")
    rows = [*zip(keys, args["items"], strict=True), *zip(kwargs.get("keys", []), kwargs["items"], strict=True)]
    rows = [(key, item) for key, item in rows if item["kind"] != "fixed"]
    return {"kind": "dict", "keys": [key for key, _ in rows], "items": [item for _, item in rows]}


def _tree_keys(kind: str, context: Any, fields: dict[str, list[str]]) -> list[Any] | None:
    """Keys of a dict-like container (dict, OrderedDict, a model output class); None for a sequence."""
    if kind.endswith("namedtuple"):
        return None
    try:
        context = json.loads(context) if isinstance(context, str) else context
    except json.JSONDecodeError:
        return None
    if isinstance(context, dict) and "dict_context" in context:  # defaultdict
        context = context["dict_context"]
    if isinstance(context, list) and len(context) == 2 and isinstance(context[0], list):  # (keys, type)
        context = context[0]
    return context if isinstance(context, list) else fields.get(kind)
