"""Nested arguments and results: tuples, lists and dicts of tensors, as the INFO section's trees describe them.

A tree is `{"kind": "leaf" | "none" | "tuple" | "list" | "dict", "items": [trees], "keys": [names]}`; leaves are
numbered in the order they are written, unless a leaf says `"index"`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Tree = Mapping[str, Any]


class StructureError(TypeError):
    """A value has another structure than the tree; the message says where."""


def flat_tree(names: Sequence[str]) -> Tree:
    """The tree of a call that takes tensors by name and nothing nested."""
    return {"kind": "dict", "keys": list(names), "items": [{"kind": "leaf"} for _ in names]}


def leaf_count(tree: Tree) -> int:
    """Leaves of a tree."""
    if tree["kind"] == "leaf":
        return 1
    return sum(leaf_count(item) for item in tree.get("items", ()))


def flatten(tree: Tree, value: Any, where: str) -> list[Any]:
    """Leaves of `value`, which has the tree's structure. `where` names the value in messages."""
    kind = tree["kind"]
    if kind == "leaf":
        if value is None:
            raise StructureError(f"{where} is None; the model takes a tensor")
        return [value]
    if kind == "none":
        if value is not None:
            raise StructureError(f"{where} was None when the model was exported and must be None")
        return []
    items = tree.get("items", ())
    if kind == "dict":
        keys = tree["keys"]
        if not isinstance(value, Mapping):
            raise StructureError(f"{where} is a {type(value).__name__}; the model takes a dict of {', '.join(keys)}")
        missing = [key for key in keys if key not in value]
        surplus = [key for key in value if key not in keys]
        if missing or surplus:
            what = f"lacks {missing[0]!r}" if missing else f"has {surplus[0]!r}, which the model does not take"
            raise StructureError(f"{where} {what}")
        parts = [(item, value[key], f"{where}[{key!r}]") for key, item in zip(keys, items, strict=True)]
    else:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            size = f" of {len(value)}" if isinstance(value, list | tuple) else ""
            raise StructureError(f"{where} is a {type(value).__name__}{size}; the model takes a {kind} of {len(items)}")
        parts = [(item, value[index], f"{where}[{index}]") for index, item in enumerate(items)]
    return [leaf for item, part, name in parts for leaf in flatten(item, part, name)]


def unflatten(tree: Tree, leaves: Sequence[Any]) -> Any:
    """The value that `flatten` would take apart into `leaves`."""
    return _build(tree, leaves, itertools.count())


# No closure: one that calls itself is a cycle, and would hold the leaves until garbage is collected.
def _build(node: Tree, leaves: Sequence[Any], positions: Iterator[int]) -> Any:
    kind = node["kind"]
    if kind == "leaf":
        return leaves[node.get("index", next(positions))]
    if kind == "none":
        return None
    items = [_build(item, leaves, positions) for item in node.get("items", ())]
    if kind == "dict":
        return dict(zip(node["keys"], items, strict=True))
    return tuple(items) if kind == "tuple" else items
