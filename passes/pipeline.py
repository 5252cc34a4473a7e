"""The order of passes, and nothing else: each string can be typed at `mlc-opt -p`."""

from __future__ import annotations

GRAPH = [
    "simplify", "fold", "cse", "dce",
    "infer-layout",          # after fold: scales of batch norms are in the weights by then
    "simplify", "fold", "cse",
    "pointwise-convs",       # before merge-products: several may read one tensor
    "merge-products", "split-rotary", "cse", "fold",  # weights side by side and halves of tables, computed now
    "match-attention",
    "fold-masks",            # after match-attention: of what exporters spelt out too
    "simplify",              # keys are transposed back
    "decompose",             # composites that no fused emitter takes; before fuse sees them
]
KERNELS = [
    "winograd",              # convolutions of 3x3 in fewer multiplications
    "pack-operands",         # products of two tensors of the run: the second in panels
    "pad-rows",              # after pack-operands: of all products that are left
    "fuse{max-ops=64}",
    "hoist-invariants",      # after fuse: whole kernels, out of loops
    "expand-composites",     # inside kernels: softmax to max, sub, exp, sum, div
    "pack-weights",
    "keep-state",            # before plan-memory: copies are calls like others
    "plan-memory",
    "check-memory-plan",
]


def pipeline(precision: str = "f32") -> list[str]:
    """Every pass from an imported module to kernels with a memory plan; factors of products in `precision`."""
    narrow = [] if precision == "f32" else [f"reduce-precision{{dtype={precision}}}", "fold", "cse", "dce"]
    return [*GRAPH, *narrow, *KERNELS]
