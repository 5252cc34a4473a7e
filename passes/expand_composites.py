"""Replaces composites inside kernels by the primitive ops that row emitters take."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.dialects.build import definition_of
from mlir import ir

from .base import Pass
from .decompose import Decompose
from .rewriting import body_of, kernels, lower_in_place, mlc_ops


@dataclass(frozen=True)
class ExpandComposites(Pass):
    """Lowers softmax, layer_norm and the like in every kernel function.

    Before: kernels may hold composites. After: pointwise, view and reduce ops in their place; heroes with an emitter of
    their own (matmul, conv, attention, …) stay.
    """

    def run(self, module: ir.Module) -> None:
        for function in kernels(module).values():
            block = body_of(function)
            for operation in mlc_ops(block):
                if definition_of(operation).kind == "composite":
                    lower_in_place(operation)
            for operation in mlc_ops(block):
                Decompose()._rewrite(operation)
