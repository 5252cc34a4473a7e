"""Scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .matmul import accumulator
from .norm import narrowed, widened
from .op import op
from .types import DTYPES, TensorType, broadcast_shapes

NO_BOUND = 1 << 31


def band_of(attrs: Mapping[str, Any]) -> tuple[int, int]:
    """(before, after) of an attention's attributes: key j counts for query i where i - before <= j <= i + after."""
    return attrs["before"], min(0, attrs["after"]) if attrs["is_causal"] else attrs["after"]


@op("contract")
def attention(
    q: F[*A, Q, D], k: F[*G, K, D], v: F[*G, K, E], mask: T = None, *, scale: float, is_causal: bool = False,
    before: int = NO_BOUND, after: int = NO_BOUND,
) -> F[*A, Q, E]:  # fmt: skip
    """softmax(scale q k^T + mask) v for q [*B, H, Q, D], k [*B, G, K, D], v [*B, G, K, E]; H a multiple of G.

    Head h of `q` meets head h // (H / G) of `k` and `v`. A bool `mask` keeps where true, a float one is added; it
    broadcasts to [*B, H, Q, K]. Key j is visible to query i where i - before <= j <= i + after (2**31: no bound), and,
    is_causal, j <= i. A query that sees no key gives 0.
    Softmax in f32 for f16 and bf16. Source: Vaswani et al. 2017, eq. 1; ATen scaled_dot_product_attention.
    """
    wide = accumulator(q.dtype)
    heads = q.shape[-3] // k.shape[-3]
    keys, values = (np.repeat(x.astype(wide, copy=False), heads, axis=-3) for x in (k, v))
    scores = np.matmul(q.astype(wide, copy=False) * wide.type(scale), np.swapaxes(keys, -1, -2))
    first, last = band_of({"before": before, "after": after, "is_causal": is_causal})
    ahead = np.arange(k.shape[-2]) - np.arange(q.shape[-2])[:, None]
    scores = np.where((ahead >= -first) & (ahead <= last), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask.astype(wide)
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isneginf(peak), 0, peak))
    total = powers.sum(axis=-1, keepdims=True)
    return np.matmul(powers / np.where(total == 0, 1, total), values).astype(q.dtype)


@attention.rule("infer")
def _(q, k, v, mask, *, scale, is_causal, before, after):
    if q.rank < 3 or k.rank != q.rank or v.rank != q.rank or not q.shape[:-3] == k.shape[:-3] == v.shape[:-3]:
        raise ValueError(f"q is {q}, k is {k}, v is {v}: they need one rank of at least 3, and one batch")
    heads, groups = q.shape[-3], k.shape[-3]
    if heads != groups and (not isinstance(heads, int) or not isinstance(groups, int) or heads % groups):
        raise ValueError(f"q has {heads} heads, which is no multiple of k's {groups}")
    if k.shape[-3] != v.shape[-3]:
        raise ValueError(f"k is {k}, v is {v}: their heads differ")
    scores = (*q.shape[:-1], k.shape[-2])
    if mask is not None:
        if not (DTYPES[mask.dtype].is_float or mask.dtype == "bool"):
            raise ValueError(f"mask is {mask}, expected a bool or a float")
        if broadcast_shapes([mask.shape, scores]) != scores:
            raise ValueError(f"mask is {mask}, which does not broadcast to {list(scores)}")
    return TensorType(q.dtype, (*q.shape[:-1], v.shape[-1]))


def _scores(g, q, k, mask, scale: float, band: tuple[int, int]):
    """[*B, H, Q, K] of f32 or f64 operands, masked."""
    *batch, heads, queries, depth = q.shape
    groups, keys = k.shape[-3], k.shape[-2]
    # Heads of one group become more rows, so that no key or value is repeated.
    rows = g.reshape(g.mul(q, g.scalar(scale, q.dtype)), shape=[*batch, groups, heads // groups * queries, depth])
    product = g.matmul(rows, k, transpose_b=True)
    scores = g.reshape(product, shape=[*batch, heads, queries, keys])
    low = g.scalar(-np.inf, scores.dtype)
    row = g.reshape(g.iota(size=queries, dtype="i64"), shape=[queries, 1])
    key = g.iota(size=keys, dtype="i64")
    before, after = band
    if after != NO_BOUND:
        scores = g.where(g.le(key, g.add(row, g.scalar(after, "i64"))), scores, low)
    if before != NO_BOUND:
        scores = g.where(g.ge(key, g.sub(row, g.scalar(before, "i64"))), scores, low)
    if mask is None:
        return scores
    if mask.dtype == "bool":
        return g.where(mask, scores, low)
    return g.add(scores, narrowed(g, mask, scores.dtype))


@attention.rule("lower")
def _(g, q, k, v, mask, *, scale, is_causal, before, after):
    *batch, heads, queries, _ = q.shape
    groups, keys = k.shape[-3], k.shape[-2]
    # Wide from end to end: scores and weights rounded to a narrow float would be a memory format's error, not the op's.
    band = band_of({"before": before, "after": after, "is_causal": is_causal})
    scores = _scores(g, widened(g, q), widened(g, k), mask, scale, band)
    last = len(scores.shape) - 1
    if mask is None and before == NO_BOUND and band[1] >= 0:
        weights = g.softmax(scores, axis=last)  # every query sees key 0
    else:
        zero, low = g.scalar(0.0, scores.dtype), g.scalar(-np.inf, scores.dtype)
        peak = g.max(scores, axes=[last], keepdims=True)
        powers = g.exp(g.sub(scores, g.where(g.eq(peak, low), zero, peak)))
        total = g.sum(powers, axes=[last], keepdims=True)
        weights = g.div(powers, g.where(g.eq(total, zero), g.scalar(1.0, scores.dtype), total))
    weights = g.reshape(weights, shape=[*batch, groups, heads // groups * queries, keys])
    result = narrowed(g, g.matmul(weights, widened(g, v)), q.dtype)
    return g.reshape(result, shape=[*batch, heads, queries, v.shape[-1]])
