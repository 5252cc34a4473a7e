"""Marks the weights that a kernel wants packed at compile time."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects.build import attrs_of, definition_of
from mlir import ir

from .base import Pass
from .rewriting import body_of, functions, kernels


def _weight_only(module: ir.Module, kernel: str, position: int) -> bool:
    """Whether every call of `kernel` passes a weight there."""
    for op in body_of(functions(module)["forward"]).operations:
        operation = op.operation
        if operation.name != "func.call" or ir.FlatSymbolRefAttr(operation.attributes["callee"]).value != kernel:
            continue
        owner = operation.operands[position].owner
        if isinstance(owner, ir.Block) or owner.operation.name != "mlc.weight":
            return False
    return True


def _used_by_hero_only(argument: ir.Value, hero: ir.Operation) -> bool:
    return all(use.owner.operation == hero for use in argument.uses)


def _may_pack(operation: ir.Operation) -> bool:
    definition = definition_of(operation)
    return definition.kind == "contract" or "layouts" in definition.rules


def _layout(hero: ir.Operation, position: int) -> str:
    """The packed layout of operand `position`, spelt with all that packing must know; empty: as it is."""
    attrs = attrs_of(hero)
    if "layouts" in definition_of(hero).rules:
        return definition_of(hero).rules["layouts"](**attrs).get(position, "")
    if hero.name == "mlc.matmul" and position == 1:
        return "panels-transposed" if attrs["transpose_b"] else "panels"
    if hero.name in ("mlc.conv", "mlc.conv_winograd") and position == 1:
        return "conv"  # which of its forms depends on the machine: the target says
    return ""


@dataclass(frozen=True)
class PackWeights(Pass):
    """Writes `mlc.layouts`, one string an argument, on kernels whose hero reads a packed weight.

    Before: fuse ran. After: the types stay logical; the program lays the bytes out as the string says, in panels as
    wide as the machine's register tile.
    """

    def run(self, module: ir.Module) -> None:
        for name, kernel in kernels(module).items():
            block = body_of(kernel)
            heroes = (op.operation for op in block.operations if definition_of(op))
            hero = next((op for op in heroes if _may_pack(op)), None)
            if hero is None:
                continue
            layouts = [""] * len(block.arguments)
            for position, operand in enumerate(hero.operands):
                layout = _layout(hero, position)
                if layout and isinstance(operand.owner, ir.Block) and _used_by_hero_only(operand, hero):
                    index = ir.BlockArgument(operand).arg_number
                    layouts[index] = layout if _weight_only(module, name, index) else ""
            if any(layouts):
                kernel.attributes["mlc.layouts"] = ir.ArrayAttr.get([ir.StringAttr.get(t) for t in layouts])
