"""Which tensors of a torch graph share memory, so that in-place ops can be imported as pure ones.

A view (`x[1:]`, `x.t()`) hangs on the tensor it views. A write to a tensor gives it a new value; the write is carried
up to what it views by scattering it back, and everything else below is stale: it is taken again, from its parent, when
it is next read.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from mlc.frontend.record import Graph, Loc, Node, Ref
from mlc.frontend.report import UnsupportedCaseError

if TYPE_CHECKING:
    from mlc.frontend.aten_rows import AtenBuilder

_IN_PLACE = re.compile(r"^aten\.([a-z]\w*[a-z0-9]|[a-z])_\.")
_DUNDER_IN_PLACE = re.compile(r"^aten\.__i(and|or|xor|lshift|rshift)__\.")

# By what a write to the view is carried to the tensor viewed.
_SAME = {"alias", "detach", "requires_grad", "lift_fresh", "dropout", "feature_dropout", "positive"}
_RESHAPES = {"view", "unsqueeze", "squeeze", "_unsafe_view", "flatten", "unflatten", "view_as"}
_PERMUTES = {"permute", "transpose", "t", "numpy_T", "swapaxes", "movedim"}
_REGIONS = {"slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "tensor_split"}
# A view or a copy, as strides have it: fine unless the other one is also read after a write.
_MAYBE = {
    "contiguous", "reshape", "to", "ravel", "expand", "expand_as", "diagonal", "as_strided", "unfold", "reshape_as"
}  # fmt: skip
_VIEWS = _SAME | _RESHAPES | _PERMUTES | _REGIONS | _MAYBE


def functional_target(target: str) -> str:
    """aten.add_.Tensor as aten.add.Tensor; other targets as they are."""
    if match := _IN_PLACE.match(target):
        return f"aten.{match[1]}.{target[match.end() :]}"
    if match := _DUNDER_IN_PLACE.match(target):
        return f"aten.__{match[1]}__.{target[match.end() :]}"
    return target


def written_argument(node: Node) -> str | None:
    """The name of the tensor that an in-place op writes; None for a pure op or one that only relabels (detach_)."""
    target = functional_target(node.target)
    if target == node.target or _base(target) in _VIEWS:
        return None
    first = node.args[0] if node.args else node.kwargs.get("self")
    return first.name if isinstance(first, Ref) else None


def _base(target: str) -> str:
    return functional_target(target).split(".")[1] if target.startswith("aten.") else target


class Views:
    """The sharing in one graph. `written` maps the roots written to the first place that does."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.parents: dict[str, tuple[str, Node]] = {}
        self.children: dict[str, list[str]] = {}
        self.stale: set[str] = set()
        self.written: dict[str, Loc] = {}
        self.order = {id(node): index for index, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            self._register(node)

    def _register(self, node: Node) -> None:
        written = written_argument(node)
        parent = written
        if parent is None and _base(node.target) in _VIEWS and node.args and isinstance(node.args[0], Ref):
            parent = node.args[0].name
        if parent is None or not self._may_share(node, parent):
            return
        for name in node.output_names():
            self.parents[name] = (parent, node)
            self.children.setdefault(parent, []).append(name)

    def _may_share(self, node: Node, parent: str) -> bool:
        """A conversion to another dtype is always a copy."""
        dtypes = {self.graph.values[name].dtype for name in node.output_names() if name in self.graph.values}
        return parent not in self.graph.values or dtypes <= {self.graph.values[parent].dtype}

    def root(self, name: str) -> str:
        while name in self.parents:
            name = self.parents[name][0]
        return name

    def write(self, name: str, value: Any, loc: Loc, scope: Any) -> None:
        """Gives `name` a new value and everything that shares its memory with it."""
        scope.env[name] = value
        self._spoil(name, set())
        while name in self.parents:
            parent, node = self.parents[name]
            if written_argument(node) is None:
                self._check_known(node, name, parent, loc)
                value = self._scattered(scope, node, name, scope.read(parent), value)
            scope.env[parent] = value
            self._spoil(parent, {name})
            name = parent
        self.written.setdefault(name, loc)

    def _spoil(self, name: str, kept: set[str]) -> None:
        """Marks what was taken from `name` as stale, but for the `kept`."""
        for child in self.children.get(name, []):
            if child not in kept:
                self.stale.add(child)
                self._spoil(child, set())

    def _check_known(self, node: Node, name: str, parent: str, loc: Loc) -> None:
        """Refuses a write through what may or may not be a copy, unless only the written name is read any more."""
        if _base(node.target) not in _MAYBE:
            return
        readers = [n for n in self.graph.nodes if any(ref.name == parent for ref in n.inputs())]
        later = [n for n in readers if n is not node and self.order[id(n)] > self.order[id(node)]]
        outputs = {ref.name for ref in self.graph.outputs if isinstance(ref, Ref)}
        if later or self.root(parent) in outputs or parent in outputs:
            what = f"an in-place write ({loc}) through {node.target}, which may copy"
            raise UnsupportedCaseError(f"{what}; use .clone() there")

    def _scattered(self, scope: Any, node: Node, name: str, old: Any, new: Any) -> Any:
        """The viewed tensor `old` with the view replaced by `new`."""
        builder: AtenBuilder = scope.importer.builder
        base = _base(node.target)
        if base in _SAME or (base in _MAYBE and list(old.shape) == list(new.shape)):
            return new
        if base in _RESHAPES | {"reshape", "ravel", "reshape_as"}:
            return builder.reshape(new, list(old.shape))
        args = [scope.arg(arg) for arg in node.args[1:]]
        if base in _PERMUTES:
            return builder.transpose(new, _inverse(_permutation(base, args, len(old.shape))))
        if base in _REGIONS:
            output = next((o for o in node.outputs if isinstance(o, list)), None)
            index = output.index(name) if output is not None else 0
            dim, start, end, step, is_select = _region(builder, base, args, node.kwargs, old, index)
            patch = builder.unsqueeze(new, dim) if is_select else new
            return replace_region(builder, old, patch, dim, start, end, step)
        raise UnsupportedCaseError(f"an in-place write through {node.target}; use .clone() there")


def _permutation(base: str, args: list[Any], rank: int) -> list[int]:
    perm = list(range(rank))
    if base == "permute":
        return [axis % rank for axis in args[0]]
    if base in ("t", "numpy_T"):
        return perm[::-1]
    if base == "movedim":
        sources, targets = [[a] if isinstance(a, int) else list(a) for a in args[:2]]
        moved = dict(zip((t % rank for t in targets), (s % rank for s in sources), strict=True))
        rest = iter(axis for axis in range(rank) if axis not in moved.values())
        return [moved[axis] if axis in moved else next(rest) for axis in range(rank)]
    a, b = args[0] % rank, args[1] % rank
    perm[a], perm[b] = perm[b], perm[a]
    return perm


def _inverse(perm: list[int]) -> list[int]:
    return [perm.index(axis) for axis in range(len(perm))]


def _region(
    builder: AtenBuilder, base: str, args: list[Any], kwargs: dict[str, Any], old: Any, index: int
) -> tuple[int, Any, Any, int, bool]:
    """(axis, start, end, step, is a select) of the part of `old` that a view is."""
    if base == "unbind":
        return builder.axis(old, args[0] if args else kwargs.get("dim", 0)), index, index + 1, 1, True
    if base == "select":
        axis = builder.axis(old, args[0])
        start = args[1] if not isinstance(args[1], int) or args[1] >= 0 else old.shape[axis] + args[1]
        return axis, start, start + 1, 1, True
    if base == "slice":
        defaults: list[Any] = [0, None, None, 1]
        dim, start, end, step = (*args, *defaults[len(args) :])
        return builder.axis(old, dim), start, end, step, False
    if base == "narrow":
        return builder.axis(old, args[0]), args[1], args[1] + args[2], 1, False
    axis = builder.axis(old, args[1] if len(args) > 1 else kwargs.get("dim", 0))
    sizes = part_sizes(base, old.shape[axis], args[0])
    start = sum(sizes[:index])
    return axis, start, start + sizes[index], 1, False


def part_sizes(base: str, size: Any, spec: Any) -> list[Any]:
    """The sizes of the parts that split, split_with_sizes, chunk and tensor_split cut a dimension into."""
    if isinstance(spec, list) and base != "tensor_split":
        return spec
    if not isinstance(size, int):
        if isinstance(spec, int) and base in ("chunk", "tensor_split") and size % spec == 0:
            return [size // spec] * spec
        if not isinstance(spec, int) and base == "split" and size % spec == 0 and isinstance(size // spec, int):
            return [spec] * (size // spec)
        raise UnsupportedCaseError(f"{base} of a dynamic dimension ({size}) into parts whose sizes depend on it")
    if base == "tensor_split":
        if isinstance(spec, list):
            ends = [*(min(max(e if e >= 0 else e + size, 0), size) for e in spec), size]
            return [max(b - a, 0) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        return [size // spec + (1 if index < size % spec else 0) for index in range(spec)]
    part = max(math.ceil(size / spec), 1) if base == "chunk" else spec
    return [min(part, size - first) for first in range(0, max(size, 1), part)]


def replace_region(b: AtenBuilder, old: Any, patch: Any, dim: int, start: Any, end: Any, step: int = 1) -> Any:
    """`old` with old[..., start:end:step, ...] at axis `dim` replaced by `patch`."""
    size = old.shape[dim]
    start, end = 0 if start is None else start, (1 << 62) if end is None else end
    first, limit, length = b.sizes.slice_bounds(size, start, end, step)
    if isinstance(length, int) and length == 0:
        return old
    if step != 1:
        shape = [1] * len(old.shape)
        shape[dim] = length
        positions = b.expand(b.reshape(b.iota(length, "i64", first, step), shape), list(patch.shape))
        return b.op("scatter_elements", old, positions, patch, axis=dim, reduce="none")
    parts = [b.slice(old, dim, 0, first), patch, b.slice(old, dim, limit, size)]
    return b.concat([part for part in parts if part.shape[dim] != 0], dim)
