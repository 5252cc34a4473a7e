"""ONNX attention of the standard and of com.microsoft, as the attention op."""

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


# --- com.microsoft ---


def _padding_mask(c: Call, mask: Value, keys: Any) -> Value:
    """[B, 1, 1, K] from 1s and 0s [B, K]."""
    if len(mask.shape) != 2:
        raise c.unsupported(f"a key padding mask of rank {len(mask.shape)}")
    keep = c.ne(mask, c.scalar(0, mask))
    return c.shaped(keep, [mask.shape[0], 1, 1, keys])


@row("MultiHeadAttention", domain="com.microsoft")
def _multi_head_attention(
    c: Call,
    q: Value,
    k: Value | None = None,
    v: Value | None = None,
    bias: Value | None = None,
    padding: Value | None = None,
    added: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
) -> Any:
    heads = c.attr("num_heads")
    if k is None or v is None or len(k.shape) != 3:
        raise c.unsupported("packed queries, keys and values")
    if bias is not None:
        width = q.shape[2]
        q = c.add(q, c.sliced(bias, 0, 0, width))
        k = c.add(k, c.sliced(bias, 0, width, 2 * width))
        v = c.add(v, c.sliced(bias, 0, 2 * width, bias.shape[0]))
    q, k, v = (split_heads(c, x, heads) for x in (q, k, v))
    return _finished(c, q, k, v, padding, added, past_key, past_value)


def _finished(
    c: Call,
    q: Value,
    k: Value,
    v: Value,
    padding: Value | None,
    added: Value | None,
    past_key: Value | None,
    past_value: Value | None,
) -> Any:
    if past_key is not None:
        k, v = c.concat(past_key, k, axis=2), c.concat(past_value, v, axis=2)
    mask = added if padding is None else both_masks(c, _padding_mask(c, padding, k.shape[2]), added)
    if c.attr("unidirectional", 0):
        past = 0 if past_key is None else past_key.shape[2]
        mask = both_masks(c, causal_mask(c, q.shape[2], k.shape[2], past), mask)
    scale = c.attr("scale") or 1 / math.sqrt(q.shape[3])
    return [merge_heads(c, c.attention(q, k, v, mask, scale=scale, is_causal=False)), k, v]


@row("Attention", domain="com.microsoft")
def _packed_attention(
    c: Call,
    x: Value,
    w: Value,
    bias: Value | None = None,
    padding: Value | None = None,
    past: Value | None = None,
    added: Value | None = None,
) -> Any:
    """One product gives queries, keys and values side by side."""
    if past is not None or c.has_output(1):
        raise c.unsupported("a packed past")
    projected = c.matmul(x, w)
    projected = projected if bias is None else c.add(projected, bias)
    widths = c.attr("qkv_hidden_sizes") or [w.shape[1] // 3] * 3
    parts, start = [], 0
    for width in widths:
        parts.append(split_heads(c, c.sliced(projected, 2, start, start + width), c.attr("num_heads")))
        start += width
    q, k, v = parts
    return _finished(c, q, k, v, padding, added, None, None)[:1]


@row("RotaryEmbedding", domain="com.microsoft")
def _rotary(c: Call, x: Value, positions: Value, cosines: Value, sines: Value) -> Value:
    flat = len(x.shape) == 3
    dim = c.attr("rotary_embedding_dim", 0)
    if flat:
        heads = c.attr("num_heads", 0) or x.shape[2] // (2 * cosines.shape[1])
        x = split_heads(c, x, heads)
    batch, _, length, depth = x.shape
    dim = dim or depth
    half = dim // 2
    if len(positions.shape) == 1:  # one offset for the whole batch
        steps = c.add(c.iota(size=length, dtype="i64"), c.shaped(positions, [1]))
    else:
        steps = positions
    rows = [c.gather(table, steps, axis=0) for table in (cosines, sines)]
    cosine, sine = (c.shaped(r, [r.shape[0] if len(r.shape) == 3 else 1, 1, length, half]) for r in rows)
    if c.attr("interleaved", 0):
        pairs = c.shaped(c.sliced(x, 3, 0, dim), [batch, x.shape[1], length, half, 2])
        first, second = (c.shaped(c.sliced(pairs, 4, i, i + 1), [batch, x.shape[1], length, half]) for i in (0, 1))
    else:
        first, second = c.sliced(x, 3, 0, half), c.sliced(x, 3, half, dim)
    turned = [c.sub(c.mul(first, cosine), c.mul(second, sine)), c.add(c.mul(first, sine), c.mul(second, cosine))]
    if c.attr("interleaved", 0):
        stacked = c.concat(*(c.shaped(t, [*t.shape, 1]) for t in turned), axis=4)
        parts = [c.shaped(stacked, [batch, x.shape[1], length, dim])]
    else:
        parts = turned
    if dim != depth:
        parts.append(c.sliced(x, 3, dim, depth))
    y = c.concat(*parts, axis=3) if len(parts) > 1 else parts[0]
    return merge_heads(c, y) if flat else y


@row("EmbedLayerNormalization", domain="com.microsoft")
def _embed_layer_norm(
    c: Call,
    ids: Value,
    segments: Value | None = None,
    words: Value | None = None,
    positions: Value | None = None,
    kinds: Value | None = None,
    gamma: Value | None = None,
    beta: Value | None = None,
    mask: Any = None,
    position_ids: Value | None = None,
) -> Any:
    length = ids.shape[1]
    where = position_ids if position_ids is not None else c.iota(size=length, dtype="i64")
    total = c.add(c.gather(words, ids, axis=0), c.gather(positions, where, axis=0))
    if kinds is not None and segments is not None:
        total = c.add(total, c.gather(kinds, segments, axis=0))
    y = c.layer_norm(total, gamma, beta, axis=2, epsilon=c.attr("epsilon", 1e-12))
    if mask is None:
        counts: Any = c.full(shape=[ids.shape[0]], value=0, dtype="i32")
    else:
        flags = c.to(c.importer.materialize(mask, "mask"), "i32")
        counts = c.sum(flags, axes=[1], keepdims=False)
    return [y, counts, total]
