"""Ops of ai.onnx.ml on numbers, and the counting of n-grams: what tabular and text pipelines put before a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from mlc.dialects.types import DTYPES
from mlc.frontend.onnx_ops import Call, row

if TYPE_CHECKING:
    from mlc.frontend.graph import Value

ML = "ai.onnx.ml"


@row("Binarizer", domain=ML)
def _binarizer(c: Call, x: Value) -> Value:
    return c.to(c.gt(x, c.scalar(c.attr("threshold", 0.0), x)), x.dtype)


@row("ArrayFeatureExtractor", domain=ML)
def _array_feature_extractor(c: Call, x: Value, columns: Value) -> Value:
    count = columns.shape[-1]
    x = c.shaped(x, [1, x.shape[0]]) if len(x.shape) == 1 else x
    return c.gather(x, c.shaped(columns, [count]), axis=len(x.shape) - 1)


@row("Scaler", domain=ML)
def _scaler(c: Call, x: Value) -> Value:
    """(x - offset) * scale by column, in f32."""
    offset, scale = (c.const(np.asarray(c.attr(name, [value]), np.float32)) for name, value in _SCALER.items())
    return c.mul(c.sub(c.to(x, "f32"), offset), scale)


_SCALER = {"offset": 0.0, "scale": 1.0}


@row("Normalizer", domain=ML)
def _normalizer(c: Call, x: Value) -> Value:
    """Rows over their largest, their sum of magnitudes or their length; a row of zeros stays."""
    x, axes, norm = c.to(x, "f32"), [len(x.shape) - 1], c.attr("norm", "MAX")
    if norm == "L2":
        size = c.sqrt(c.sum(c.mul(x, x), axes=axes, keepdims=True))
    elif norm == "L1":
        size = c.sum(c.abs(x), axes=axes, keepdims=True)
    else:
        size = c.max(x, axes=axes, keepdims=True)
    return c.where(c.eq(size, c.scalar(0, size)), x, c.div(x, size))


@row("LinearRegressor", domain=ML)
def _linear_regressor(c: Call, x: Value) -> Value:
    targets = c.attr("targets", 1)
    if c.attr("post_transform", "NONE") != "NONE":
        raise c.unsupported(f"post_transform {c.attr('post_transform')}")
    weights = np.asarray(c.attr("coefficients"), np.float32).reshape(targets, -1)
    y = c.matmul(c.to(x, "f32"), c.const(weights), transpose_b=True)
    bias = c.attr("intercepts")
    return y if bias is None else c.add(y, c.const(np.asarray(bias, np.float32)))


# --- trees ---

_LESS_EQUAL, _LESS, _GREATER_EQUAL, _GREATER, _EQUAL, _NOT_EQUAL, _MEMBER = range(7)
_SUM, _AVERAGE = 1, 0
_COMPARISONS = {_LESS_EQUAL: "le", _LESS: "lt", _GREATER_EQUAL: "ge", _GREATER: "gt", _EQUAL: "eq", _NOT_EQUAL: "ne"}


@dataclass(frozen=True)
class Trees:
    """Nodes of all trees in one table, then the leaves; a leaf is its own successor, and `depth` steps reach it."""

    feature: np.ndarray
    mode: np.ndarray
    split: np.ndarray
    members: np.ndarray  # [nodes, most], NaN where a node has fewer
    yes: np.ndarray
    no: np.ndarray
    roots: np.ndarray
    depth: int


@row("TreeEnsemble", domain=ML)
def _tree_ensemble(c: Call, x: Value) -> Value:
    """All items walk all trees at once, a level a step; what a leaf holds goes to the leaf's target."""
    if c.attr("post_transform", 0) or c.attr("aggregate_function", _SUM) not in (_SUM, _AVERAGE):
        raise c.unsupported("a transform of the sums, or an aggregate but sum and average")
    trees, dtype = _trees(c, DTYPES[x.dtype].numpy), x.dtype
    items = x.shape[0]
    at = c.expanded(c.const(trees.roots[None]), [items, len(trees.roots)])
    for _ in range(trees.depth):
        at = _next_nodes(c, trees, x, at)
    inner = len(trees.feature) - len(c.attr("leaf_weights"))
    weights = np.zeros((len(trees.feature), c.attr("n_targets")), DTYPES[dtype].numpy)
    weights[np.arange(inner, len(weights)), c.attr("leaf_targetids")] = c.attr("leaf_weights")
    total = c.sum(c.gather(c.const(weights), at, axis=0), axes=[1], keepdims=False)
    if c.attr("aggregate_function", _SUM) == _AVERAGE:
        total = c.div(total, c.scalar(len(trees.roots), total))
    return total


def _trees(c: Call, dtype: np.dtype) -> Trees:
    modes = np.asarray(c.attr("nodes_modes"), np.int64)
    leaves = len(c.attr("leaf_weights"))
    inner = len(modes)

    def successors(nodes: str, flags: str) -> np.ndarray:
        given = np.asarray(c.attr(nodes)) + np.where(np.asarray(c.attr(flags)) == 1, inner, 0)
        return np.concatenate([given, inner + np.arange(leaves)]).astype(np.int64)

    yes, no = successors("nodes_truenodeids", "nodes_trueleafs"), successors("nodes_falsenodeids", "nodes_falseleafs")
    sets = _member_sets(c, modes)
    most = max((len(s) for s in sets), default=1) or 1
    members = np.full((inner + leaves, most), np.nan, dtype)
    for node, found in enumerate(sets):
        members[node, : len(found)] = found
    roots = np.asarray(c.attr("tree_roots"), np.int64)
    reached, depth = roots, 0
    while (reached < inner).any():
        reached, depth = np.unique(np.concatenate([yes[reached], no[reached]])), depth + 1
        if depth > inner:
            raise c.unsupported("a tree whose nodes form a circle")

    def padded(values: Any, kind: Any) -> np.ndarray:
        return np.concatenate([np.asarray(values, kind), np.zeros(leaves, kind)])

    splits = padded(c.attr("nodes_splits"), dtype)
    features = padded(c.attr("nodes_featureids"), np.int64)
    return Trees(features, padded(modes, np.int64), splits, members, yes, no, roots, depth)


def _member_sets(c: Call, modes: np.ndarray) -> list[list[float]]:
    """The values that a node of mode MEMBER lists; NaN ends each list."""
    found: list[list[float]] = [[]]
    for value in c.attr("membership_values") if c.attr("membership_values") is not None else []:
        if np.isnan(value):
            found.append([])
        else:
            found[-1].append(value)
    lists = iter(found)
    return [next(lists) if mode == _MEMBER else [] for mode in modes]


def _next_nodes(c: Call, trees: Trees, x: Value, at: Value) -> Value:
    """The successors of nodes `at` [N, T] for items x [N, F]."""

    def table(values: np.ndarray) -> Value:
        return c.gather(c.const(values), at, axis=0)

    value = c.gather_elements(x, table(trees.feature), axis=1)
    split, mode = table(trees.split), table(trees.mode)
    holds = None
    for number in sorted(set(trees.mode.tolist())):
        if number == _MEMBER:
            each = c.eq(c.shaped(value, [*value.shape, 1]), table(trees.members))
            one = c.any(each, axes=[2], keepdims=False)
        else:
            one = c.importer.emit(_COMPARISONS[number], value, split)
        holds = one if holds is None else c.where(c.eq(mode, c.scalar(number, mode)), one, holds)
    return c.where(holds, table(trees.yes), table(trees.no))


# --- n-grams ---


@row("TfIdfVectorizer")
def _tfidf(c: Call, x: Value) -> Value:
    """How often each n-gram of the pool occurs in each line of numbers, its elements up to skips apart, weighted."""
    if c.attr("pool_strings"):
        raise c.unsupported("strings")
    lines = c.shaped(x, [1, *x.shape]) if len(x.shape) == 1 else x
    starts, pool = list(c.attr("ngram_counts")), np.asarray(c.attr("pool_int64s"), DTYPES[x.dtype].numpy)
    counts = [
        _occurrences(c, lines, pool[start:end].reshape(-1, n), n >= c.attr("min_gram_length"))
        for n, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), start=1)
        if end > start and n <= c.attr("max_gram_length")
    ]
    found = c.concat(*counts, axis=1) if len(counts) > 1 else counts[0]
    columns = np.asarray(c.attr("ngram_indexes"))[: found.shape[1]]
    size = max(c.attr("ngram_indexes")) + 1
    source = np.full(size, found.shape[1], np.int64)  # a column that no n-gram has is 0
    source[columns] = np.arange(len(columns))
    zero = c.full(shape=[lines.shape[0], 1], value=0, dtype="f32")
    y = c.gather(c.concat(found, zero, axis=1), c.const(source), axis=1)
    y = _weighted(c, y)
    return y if len(x.shape) > 1 else c.shaped(y, [size])


def _occurrences(c: Call, lines: Value, grams: np.ndarray, is_counted: bool) -> Value:
    """[N, G] f32 for lines [N, L] and n-grams [G, n]."""
    batch, length = lines.shape
    count, n = grams.shape
    total = c.full(shape=[batch, count], value=0, dtype="f32")
    for distance in range(1, (c.attr("max_skip_count") if n > 1 else 0) + 2):
        starts = length - (n - 1) * distance
        if not is_counted or (isinstance(starts, int) and starts <= 0):
            continue
        same = None
        for i in range(n):
            part = c.shaped(c.sliced(lines, 1, i * distance, i * distance + starts), [batch, 1, starts])
            equal = c.eq(part, c.const(grams[:, i : i + 1]))
            same = equal if same is None else c.logical_and(same, equal)
        total = c.add(total, c.sum(c.to(same, "f32"), axes=[2], keepdims=False))
    return total


def _weighted(c: Call, y: Value) -> Value:
    mode, weights = c.attr("mode"), c.attr("weights")
    if mode == "IDF":
        y = c.to(c.gt(y, c.scalar(0, y)), "f32")
    return y if mode == "TF" or weights is None else c.mul(y, c.const(np.asarray(weights, np.float32)))
