"""ONNX attention of the standard, as the attention op."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.frontend.onnx_ops import ByDefinitionError, Call, row

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


_PLAIN_ATTENTION = ("is_causal", "kv_num_heads", "q_num_heads", "scale", "qk_matmul_output_mode", "softmax_precision")


def split_heads(c: Call, x: Value, heads: int) -> Value:
    """[B, S, H * D] as [B, H, S, D]."""
    batch, length, width = x.shape
    return c.transpose(c.shaped(x, [batch, length, heads, width // heads]), perm=[0, 2, 1, 3])


def merge_heads(c: Call, x: Value) -> Value:
    """[B, H, S, D] as [B, S, H * D]."""
    batch, heads, length, depth = x.shape
    return c.shaped(c.transpose(x, perm=[0, 2, 1, 3]), [batch, length, heads * depth])


def causal_mask(c: Call, queries: Any, keys: Any, offset: Any) -> Value:
    """[Q, K] bool: key j is visible to query i where j <= i + offset."""
    line = c.shaped(c.iota(size=queries, start=offset, dtype="i64"), [queries, 1])
    return c.le(c.iota(size=keys, dtype="i64"), line)


def both_masks(c: Call, a: Value | None, b: Value | None) -> Value | None:
    """What both a bool mask and a bool or additive one let through."""
    if a is None or b is None:
        return b if a is None else a
    if b.dtype == "bool":
        return c.logical_and(a, b)
    return c.where(a, b, c.scalar(-np.inf, b))


@row("Attention", since=23)
def _attention(
    c: Call,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    lengths: Any = None,
) -> Any:
    beyond = [name for name, value in c.node.attrs.items() if name not in _PLAIN_ATTENTION and value]
    if beyond or c.has_output(3) or lengths is not None or q.dtype != v.dtype:
        raise ByDefinitionError  # soft caps, windows, scores as an output
    flat = len(q.shape) == 3
    if flat:
        q = split_heads(c, q, c.attr("q_num_heads"))
        k, v = (split_heads(c, x, c.attr("kv_num_heads")) for x in (k, v))
    if past_key is not None:
        k, v = c.concat(past_key, k, axis=2), c.concat(past_value, v, axis=2)
    if mask is not None and c.joined_size(mask.shape[-1], k.shape[2]) != k.shape[2]:
        raise ByDefinitionError
    causal = bool(c.attr("is_causal", 0))
    if causal and past_key is not None:
        mask, causal = both_masks(c, causal_mask(c, q.shape[2], k.shape[2], past_key.shape[2]), mask), False
    scale = c.attr("scale")
    y = c.attention(q, k, v, mask, scale=1 / math.sqrt(q.shape[3]) if scale is None else scale, is_causal=causal)
    return [merge_heads(c, y) if flat else y, k, v]
