"""Gives each state, a tensor that is kept from run to run, its new value in the memory that it lies in."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects.builder import OpBuilder, Value
from mlc.dialects.state import state_count
from mlir import ir

from .base import Pass
from .plan_memory import in_place_arguments
from .rewriting import body_of, functions


def _calls(block: ir.Block) -> list[ir.Operation]:
    return [op.operation for op in block.operations if op.operation.name == "func.call"]


def _may_be_written_there(call: ir.Operation, state: ir.Value, calls: list[ir.Operation], kernel: ir.Operation) -> bool:
    """Whether the call's result may overwrite the state: nobody reads the old value later, and the call itself only
    where it writes."""
    readers = [position for position, other in enumerate(calls) if state in list(other.operands)]
    here = calls.index(call)
    if any(position > here for position in readers):
        return False
    operands = list(call.operands)
    if state not in operands:
        return True
    return operands.count(state) == 1 and operands.index(state) in in_place_arguments(kernel)


def _copy_kernel(module: ir.Module, type_: ir.Type, made: dict[str, str]) -> str:
    """The name of a kernel that copies a tensor of that type."""
    if str(type_) not in made:
        name = f"state_copy{len(made)}"
        function = ir.Operation.create(
            "func.func", regions=1, ip=ir.InsertionPoint.at_block_begin(module.body),
            attributes={
                "sym_name": ir.StringAttr.get(name), "sym_visibility": ir.StringAttr.get("private"),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get([type_], [type_])),
                "mlc.hero": ir.StringAttr.get("copy"), "mlc.emitter": ir.StringAttr.get("pointwise"),
            },
        )  # fmt: skip
        block = ir.Block.create_at_start(function.regions[0], [type_])
        builder = OpBuilder(ir.InsertionPoint(block), ir.Location.unknown())
        result = builder.copy(Value(block.arguments[0]))
        ir.Operation.create("func.return", operands=[result.ir], ip=ir.InsertionPoint(block))
        made[str(type_)] = name
    return made[str(type_)]


@dataclass(frozen=True)
class KeepState(Pass):
    """Copies new values of states into place, behind all other calls, where their kernels may not write there.

    Before: L1, `mlc.states` on `@forward` if the model has state. After: the call that makes a state's new value may
    write it over the old one.
    """

    def run(self, module: ir.Module) -> None:
        everything = functions(module)
        forward = everything["forward"]
        count = state_count(forward)
        if not count:
            return
        block = body_of(forward)
        last = block.operations[len(block.operations) - 1].operation
        states = list(block.arguments)[-count:]
        calls = _calls(block)
        first = len(last.operands) - count
        made: dict[str, str] = {}
        for number, state in enumerate(states):
            value = last.operands[first + number]
            call = value.owner.operation
            kernel = everything[ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
            if _may_be_written_there(call, state, calls, kernel):
                continue
            name = _copy_kernel(module, value.type, made)
            copy = ir.Operation.create(
                "func.call", results=[value.type], operands=[value], loc=call.location, ip=ir.InsertionPoint(last),
                attributes={"callee": ir.FlatSymbolRefAttr.get(name)},
            )  # fmt: skip
            last.operands[first + number] = copy.results[0]
