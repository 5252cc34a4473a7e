"""com.microsoft attention: multi-head and its packings, grouped queries over a cache, quantised, rotary positions."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from mlc.frontend.onnx_ops import Call, row
from mlc.frontend.onnx_ops_attention import both_masks, causal_mask, merge_heads, split_heads
from mlc.frontend.onnx_ops_qlinear import projected
from mlc.frontend.shape_values import Known

if TYPE_CHECKING:
    from mlc.frontend.graph import Value


def _key_mask(c: Call, mask: Value, batch: Any, queries: Any, keys: Any) -> Value:
    """Which keys count, [B, 1, 1 or Q, K] bool, from lengths [B], 1s and 0s [B, K] or [B, Q, K]."""
    if len(mask.shape) == 1:
        if mask.shape[0] != batch:
            raise c.unsupported(f"a key mask of {mask.shape[0]} numbers for {batch} items")
        positions = c.shaped(c.iota(size=keys, dtype=mask.dtype), [1, 1, 1, keys])
        return c.lt(positions, c.shaped(mask, [batch, 1, 1, 1]))
    if len(mask.shape) > 3:
        raise c.unsupported(f"a key mask of rank {len(mask.shape)}")
    keep = c.ne(mask, c.scalar(0, mask))
    rows = [1, 1] if len(mask.shape) == 2 else [1, mask.shape[1]]
    return c.shaped(keep, [mask.shape[0], *rows, mask.shape[-1]])


def _attended(
    c: Call,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    added: Value | None,
    past_key: Value | None,
    past_value: Value | None,
) -> list[Value]:
    """[y, keys, values] for q, k, v [B, H, S, D], after what came before."""
    if past_key is not None:
        k, v = c.concat(past_key, k, axis=2), c.concat(past_value, v, axis=2)
    batch, _, queries, depth = q.shape
    keep = None if mask is None else _key_mask(c, mask, batch, queries, k.shape[2])
    keep = both_masks(c, keep, added)
    if c.attr("unidirectional", 0):
        past = 0 if past_key is None else past_key.shape[2]
        keep = both_masks(c, causal_mask(c, queries, k.shape[2], past), keep)
    scale = c.attr("scale") or 1 / math.sqrt(depth)
    return [merge_heads(c, c.attention(q, k, v, keep, scale=scale, is_causal=False)), k, v]


def _pieces(c: Call, x: Value, axis: int, count: int) -> list[Value]:
    """`x` cut along an axis of `count` elements, which goes."""
    rest = [size for i, size in enumerate(x.shape) if i != axis]
    return [c.shaped(c.sliced(x, axis, i, i + 1), rest) for i in range(count)]


@row("MultiHeadAttention", domain="com.microsoft")
def _multi_head_attention(
    c: Call,
    q: Value,
    k: Value | None = None,
    v: Value | None = None,
    bias: Value | None = None,
    mask: Value | None = None,
    added: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
) -> Any:
    heads = c.attr("num_heads")
    if k is None:  # [B, S, H, 3, D]
        parts = [c.transpose(x, perm=[0, 2, 1, 3]) for x in _pieces(c, q, 3, 3)]
    elif v is None:  # keys and values [B, S, H, 2, D]
        parts = [split_heads(c, q, heads), *(c.transpose(x, perm=[0, 2, 1, 3]) for x in _pieces(c, k, 3, 2))]
    else:
        given = [q, k, v]
        if bias is not None:
            width = q.shape[2]
            starts = [0, width, 2 * width, bias.shape[0]]
            pairs = zip(given, starts, starts[1:], strict=False)
            given = [c.add(x, c.sliced(bias, 0, a, b)) if len(x.shape) == 3 else x for x, a, b in pairs]
        parts = [split_heads(c, x, heads) if len(x.shape) == 3 else x for x in given]
    return _attended(c, parts[0], parts[1], parts[2], mask, added, past_key, past_value)


def _packed(c: Call, projection: Value, mask: Value | None, past: Value | None, added: Value | None) -> list[Value]:
    """Attention of queries, keys and values side by side [B, S, 3 * H * D], with a cache [2, B, H, P, D]."""
    if c.attr("do_rotary", 0):
        raise c.unsupported("rotary positions inside")
    widths = c.attr("qkv_hidden_sizes") or [projection.shape[2] // 3] * 3
    parts, start = [], 0
    for width in widths:
        parts.append(split_heads(c, c.sliced(projection, 2, start, start + width), c.attr("num_heads")))
        start += width
    before = [None, None] if past is None else _pieces(c, past, 0, 2)
    y, keys, values = _attended(c, parts[0], parts[1], parts[2], mask, added, before[0], before[1])
    if not c.has_output(1):
        return [y]
    present = [c.shaped(x, [1, *x.shape]) for x in (keys, values)]
    return [y, c.concat(*present, axis=0)]


@row("Attention", domain="com.microsoft")
def _packed_attention(
    c: Call,
    x: Value,
    w: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    past: Value | None = None,
    added: Value | None = None,
) -> Any:
    projection = c.matmul(x, w)
    return _packed(c, projection if bias is None else c.add(projection, bias), mask, past, added)


@row("QAttention", domain="com.microsoft")
def _quantised_attention(
    c: Call,
    x: Value,
    w: Value,
    bias: Value,
    x_scale: Value,
    w_scale: Value,
    mask: Value | None = None,
    x_zero: Value | None = None,
    w_zero: Value | None = None,
    past: Value | None = None,
) -> Any:
    return _packed(c, projected(c, x, w, x_scale, w_scale, x_zero, w_zero, bias), mask, past, None)


# --- grouped queries over a cache ---


@row("GroupQueryAttention", domain="com.microsoft")
def _group_query_attention(
    c: Call,
    q: Value,
    k: Value | None = None,
    v: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    last: Value | None = None,
    total: Any = None,
    cosines: Value | None = None,
    sines: Value | None = None,
    positions: Value | None = None,
    added: Value | None = None,
    sink: Any = None,
) -> Any:
    """`last` [B] is the position of an item's last key; new keys follow the ones that the item has in the cache.

    The results hold the cache and the new keys, unless `total` is known to fit the cache: then that many as the cache.
    """
    if sink is not None or c.attr("smooth_softmax", 0) or c.attr("softcap", 0.0):
        raise c.unsupported("a softcap or smooth softmax")
    heads, groups = c.attr("num_heads"), c.attr("kv_num_heads")
    if k is None:
        depth = q.shape[2] // (heads + 2 * groups)
        ends = [0, heads * depth, (heads + groups) * depth, (heads + 2 * groups) * depth]
        q, k, v = (c.sliced(q, 2, a, b) for a, b in itertools.pairwise(ends))
    query, key, value = split_heads(c, q, heads), split_heads(c, k, groups), split_heads(c, v, groups)
    batch, _, length, depth = query.shape
    held = c.sub(c.to(c.shaped(last, [batch, 1]), "i64"), _size(c, length - 1))
    held = c.maximum(held, c.scalar(0, "i64"))  # a prompt shorter than the others has fewer keys than queries
    steps = c.add(held, c.iota(size=length, dtype="i64"))  # [B, S]: where each query stands
    if c.attr("do_rotary", 0):
        where = steps if positions is None else positions
        query, key = (_turned(c, x, where, cosines, sines, c.attr("rotary_interleaved", 0)) for x in (query, key))
    if past_key is not None:
        room = past_key.shape[2]
        key, value = (_appended(c, old, new, held) for old, new in ((past_key, key), (past_value, value)))
        if isinstance(total, Known) and (total.item() == room or _is_less(total.item(), room)):
            key, value = (c.sliced(x, 2, 0, room) for x in (key, value))
        elif isinstance(total, Known):
            c.same_size(key.shape[2], total.item())
    keys = key.shape[2]
    at = c.shaped(c.iota(size=keys, dtype="i64"), [1, 1, 1, keys])
    steps = c.shaped(steps, [batch, 1, length, 1])
    keep = c.le(at, steps)
    window = c.attr("local_window_size", -1)
    if window > 0:
        keep = c.logical_and(keep, c.gt(at, c.sub(steps, c.scalar(window, "i64"))))
    scale = c.attr("scale") or 1 / math.sqrt(depth)
    y = c.attention(query, key, value, both_masks(c, keep, added), scale=scale, is_causal=False)
    return [merge_heads(c, y), key, value]


def _is_less(a: Any, b: Any) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a < b


def _size(c: Call, size: Any) -> Value:
    return c.scalar(size, "i64") if isinstance(size, int) else c.importer.materialize_size(size)


def _appended(c: Call, old: Value, new: Value, held: Value) -> Value:
    """The `held` first rows of each item's `old` [B, G, P, D], then `new` [B, G, S, D], then 0s; P + S rows in all."""
    batch, groups, room, depth = old.shape
    both = c.concat(old, new, axis=2)
    if isinstance(room, int) and room == 0:
        return both
    size = both.shape[2]
    at = c.expanded(c.shaped(c.iota(size=size, dtype="i64"), [1, size]), [batch, size])
    # Past an item's own, the rows of `new` stand `room - held` further on.
    shift = c.sub(_size(c, room), held)
    source = c.where(c.lt(at, held), at, c.add(at, shift))
    source = c.minimum(source, _size(c, size - 1))
    source = c.expanded(c.shaped(source, [batch, 1, size, 1]), [batch, groups, size, depth])
    is_held = c.shaped(c.lt(at, c.add(held, _size(c, new.shape[2]))), [batch, 1, size, 1])
    rows = c.gather_elements(both, source, axis=2)
    return c.where(is_held, rows, c.scalar(0, rows))


# --- rotary positions ---


@row("RotaryEmbedding", domain="com.microsoft")
def _rotary(c: Call, x: Value, positions: Value, cosines: Value, sines: Value) -> Value:
    flat = len(x.shape) == 3
    width = c.attr("rotary_embedding_dim", 0)
    if flat:
        heads = c.attr("num_heads", 0) or x.shape[2] // (2 * cosines.shape[1])
        x = split_heads(c, x, heads)
    length = x.shape[2]
    if len(positions.shape) == 1:  # one offset for the whole batch
        steps = c.shaped(c.add(c.iota(size=length, dtype="i64"), c.shaped(positions, [1])), [1, length])
    else:
        steps = positions
    y = _turned(c, x, steps, cosines, sines, c.attr("interleaved", 0), width)
    return merge_heads(c, y) if flat else y


def _turned(c: Call, x: Value, steps: Value, cosines: Value, sines: Value, interleaved: int, width: int = 0) -> Value:
    """Pairs of the first `width` (0: twice the table's) of D elements of x [B, H, S, D] turned by the angles of the
    positions `steps` [1 or B, S]; a pair is neighbours, or elements half the width apart."""
    batch, heads, length, depth = x.shape
    width = width or 2 * cosines.shape[1]
    half = width // 2
    cosine, sine = (
        c.shaped(c.gather(table, steps, axis=0), [steps.shape[0], 1, length, half]) for table in (cosines, sines)
    )
    if interleaved:
        pairs = c.shaped(c.sliced(x, 3, 0, width), [batch, heads, length, half, 2])
        first, second = _pieces(c, pairs, 4, 2)
    else:
        first, second = c.sliced(x, 3, 0, half), c.sliced(x, 3, half, width)
    turned = [c.sub(c.mul(first, cosine), c.mul(second, sine)), c.add(c.mul(first, sine), c.mul(second, cosine))]
    parts = turned
    if interleaved:
        stacked = c.concat(*(c.shaped(t, [*t.shape, 1]) for t in turned), axis=4)
        parts = [c.shaped(stacked, [batch, heads, length, width])]
    if width != depth:
        parts = [*parts, c.sliced(x, 3, width, depth)]
    return c.concat(*parts, axis=3) if len(parts) > 1 else parts[0]


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
