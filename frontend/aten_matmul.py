"""ATen rows: matrix products, einsum, attention."""

from __future__ import annotations

import math
from typing import Any

from mlc.dialects import dims
from mlc.frontend.aten_rows import AtenBuilder, alias, row
from mlc.frontend.report import UnsupportedCaseError

alias("aten.linalg_matmul", "aten.matmul")
alias("aten.ger", "aten.outer")
alias("aten.linalg_vecdot", "aten.vecdot")


def _matmul(b: AtenBuilder, x: Any, y: Any, **attrs: Any) -> Any:
    """The product of operands with two dimensions or more, in the promoted dtype."""
    dtype = b.promote(x, y)
    return b.op("matmul", b.cast(x, dtype), b.cast(y, dtype), **attrs)


@row("aten.mm", "aten.bmm")
def mm(b: AtenBuilder, x: Any, y: Any) -> Any:
    return _matmul(b, x, y)


@row("aten.matmul", "aten.__matmul__")
def matmul(b: AtenBuilder, x: Any, y: Any) -> Any:
    """A vector is a row on the left and a column on the right; the added dimension goes again."""
    if len(x.shape) == 1 and len(y.shape) == 1:
        return dot(b, x, y)
    if len(x.shape) == 1:
        return b.squeeze(_matmul(b, b.unsqueeze(x, 0), y), -2)
    if len(y.shape) == 1:
        return b.squeeze(_matmul(b, x, b.unsqueeze(y, 1)), -1)
    if len(y.shape) == 2 and len(x.shape) > 2:
        # One tall matrix instead of a batch that shares its right side.
        rows = b.reshape(x, [dims.product(x.shape[:-1]), x.shape[-1]])
        return b.reshape(_matmul(b, rows, y), [*x.shape[:-1], y.shape[-1]])
    return _matmul(b, x, y)


@row("aten.mv")
def mv(b: AtenBuilder, x: Any, y: Any) -> Any:
    return matmul(b, x, y)


@row("aten.dot", "aten.vdot", "aten.inner")
def dot(b: AtenBuilder, x: Any, y: Any) -> Any:
    if len(x.shape) == 0 or len(y.shape) == 0:
        return b.mul(x, y)
    if len(x.shape) == 1 and len(y.shape) == 1:
        return b.reshape(_matmul(b, b.unsqueeze(x, 0), b.unsqueeze(y, 1)), [])
    return tensordot(b, x, y, [len(x.shape) - 1], [len(y.shape) - 1])


@row("aten.vecdot")
def vecdot(b: AtenBuilder, x: Any, y: Any, dim: int = -1) -> Any:
    return b.reduce("sum", b.mul(x, y), dim)


@row("aten.outer")
def outer(b: AtenBuilder, x: Any, y: Any) -> Any:
    return b.mul(b.unsqueeze(x, 1), b.unsqueeze(y, 0))


def _plus(b: AtenBuilder, bias: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """beta * bias + alpha * product; a beta of 0 leaves the bias unread, NaN and all."""
    if alpha != 1:
        product = b.mul(product, alpha, product.dtype)
    if beta == 0:
        return product
    return b.add(product, bias if beta == 1 else b.mul(bias, beta, bias.dtype))


@row("aten.addmm", "aten.baddbmm")
def addmm(b: AtenBuilder, bias: Any, x: Any, y: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _plus(b, bias, _matmul(b, x, y), beta, alpha)


@row("aten.addbmm")
def addbmm(b: AtenBuilder, bias: Any, x: Any, y: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _plus(b, bias, b.reduce("sum", _matmul(b, x, y), 0), beta, alpha)


@row("aten.addmv")
def addmv(b: AtenBuilder, bias: Any, x: Any, y: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _plus(b, bias, matmul(b, x, y), beta, alpha)


@row("aten.addr")
def addr(b: AtenBuilder, bias: Any, x: Any, y: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _plus(b, bias, outer(b, x, y), beta, alpha)


@row("aten.linear")
def linear(b: AtenBuilder, x: Any, weight: Any, bias: Any = None) -> Any:
    """x @ weight.T + bias; weight [out, in]."""
    if len(weight.shape) == 1:
        result = b.squeeze(_matmul(b, b.unsqueeze(x, 0) if len(x.shape) == 1 else x, b.unsqueeze(weight, 1)), -1)
        result = b.reshape(result, list(x.shape[:-1]))
    else:
        lead = list(x.shape[:-1])
        rows = x if len(x.shape) == 2 else b.reshape(x, [dims.product(lead), x.shape[-1]])
        result = b.reshape(_matmul(b, rows, weight, transpose_b=True), [*lead, weight.shape[0]])
    return result if bias is None else b.add(result, bias)


@row("aten.bilinear", "aten._trilinear")
def bilinear(b: AtenBuilder, x: Any, y: Any, weight: Any, bias: Any = None) -> Any:
    """out[..., o] = sum over i, j of x[..., i] weight[o, i, j] y[..., j]."""
    if hasattr(bias, "__len__"):
        raise UnsupportedCaseError("_trilinear; export nn.Bilinear without decompositions")
    outputs, left, right = weight.shape
    rows = b.reshape(x, [dims.product(x.shape[:-1]), left])
    mixed = _matmul(b, rows, b.reshape(b.transpose(weight, [1, 0, 2]), [left, outputs * right]))
    mixed = b.reshape(mixed, [*x.shape[:-1], outputs, right])
    result = b.reduce("sum", b.mul(mixed, b.unsqueeze(y, -2)), -1)
    return result if bias is None else b.add(result, bias)


@row("aten.tensordot")
def tensordot(b: AtenBuilder, x: Any, y: Any, dims_self: list[int], dims_other: list[int]) -> Any:
    left = [b.axis(x, axis) for axis in dims_self]
    right = [b.axis(y, axis) for axis in dims_other]
    x_kept = [axis for axis in range(len(x.shape)) if axis not in left]
    y_kept = [axis for axis in range(len(y.shape)) if axis not in right]
    inner = dims.product(x.shape[axis] for axis in left)
    x_sizes, y_sizes = [x.shape[axis] for axis in x_kept], [y.shape[axis] for axis in y_kept]
    rows = b.reshape(b.transpose(x, x_kept + left), [dims.product(x_sizes), inner])
    columns = b.reshape(b.transpose(y, right + y_kept), [inner, dims.product(y_sizes)])
    return b.reshape(_matmul(b, rows, columns), x_sizes + y_sizes)


@row("aten.kron")
def kron(b: AtenBuilder, x: Any, y: Any) -> Any:
    rank = max(len(x.shape), len(y.shape))
    x = b.unsqueeze(x, *range(rank - len(x.shape))) if len(x.shape) < rank else x
    y = b.unsqueeze(y, *range(rank - len(y.shape))) if len(y.shape) < rank else y
    left = b.reshape(x, [size for s in x.shape for size in (s, 1)])
    right = b.reshape(y, [size for s in y.shape for size in (1, s)])
    return b.reshape(b.mul(left, right), [m * n for m, n in zip(x.shape, y.shape, strict=True)])


@row("aten.cross", "aten.linalg_cross")
def cross(b: AtenBuilder, x: Any, y: Any, dim: int | None = -1) -> Any:
    if dim is None:
        dim = next(axis for axis, size in enumerate(x.shape) if isinstance(size, int) and size == 3)
    axis = dim % len(b.out_shape)
    x, y = b.expand(x, b.out_shape), b.expand(y, b.out_shape)

    def turned(v: Any, by: int) -> Any:
        return b.concat([b.slice(v, axis, by, 3), b.slice(v, axis, 0, by)], axis)

    return b.sub(b.mul(turned(x, 1), turned(y, 2)), b.mul(turned(x, 2), turned(y, 1)))


@row("aten.linalg_multi_dot", "aten.chain_matmul")
def multi_dot(b: AtenBuilder, matrices: list[Any]) -> Any:
    result = matrices[0]
    for matrix in matrices[1:]:
        result = matmul(b, result, matrix)
    return result


# --- einsum ---


@row("aten.einsum")
def einsum(b: AtenBuilder, equation: str, tensors: list[Any], path: Any = None) -> Any:
    """Pairs from the left, each a batched matrix product over the letters that no later operand or result needs."""
    inputs, output = _parse_equation(equation.replace(" ", ""), [len(x.shape) for x in tensors])
    letters, x = inputs[0], tensors[0]
    letters, x = _diagonals(b, letters, x)
    for position in range(1, len(tensors)):
        y_letters, y = _diagonals(b, inputs[position], tensors[position])
        needed = set(output).union(*(set(rest) for rest in inputs[position + 1 :]))
        letters, x = _contract(b, letters, x, y_letters, y, needed)
    letters, x = _summed(b, letters, x, set(output))
    return b.transpose(x, [letters.index(letter) for letter in output])


def _parse_equation(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Letters of each operand and of the result; `...` becomes letters of its own, aligned at the right."""
    left, arrow, right = equation.partition("->")
    operands = left.split(",")
    spare = [chr(0x3B1 + i) for i in range(max(ranks) + 1)]
    counts = [
        rank - len(text.replace("...", "")) if "..." in text else 0
        for text, rank in zip(operands, ranks, strict=True)
    ]
    width = max(counts, default=0)
    ellipsis = spare[:width]
    inputs = [
        text.replace("...", "".join(ellipsis[width - count :])) for text, count in zip(operands, counts, strict=True)
    ]
    if arrow:
        return inputs, right.replace("...", "".join(ellipsis))
    seen = "".join(text for text in operands).replace(".", "")
    once = sorted(letter for letter in set(seen) if seen.count(letter) == 1)
    return inputs, "".join(ellipsis) + "".join(once)


def _diagonals(b: AtenBuilder, letters: str, x: Any) -> tuple[str, Any]:
    """Letters that occur twice in one operand take its diagonal."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            size = x.shape[first]
            rest = [axis for axis in range(len(letters)) if axis not in (first, second)]
            moved = b.transpose(x, [first, second, *rest])
            flat = b.reshape(moved, [size * size, *moved.shape[2:]])
            x = b.op("gather", flat, b.mul(b.iota(size, "i64"), size + 1, "i64"), axis=0)
            letters = letter + "".join(letters[axis] for axis in rest)
    return letters, x


def _summed(b: AtenBuilder, letters: str, x: Any, kept: set[str]) -> tuple[str, Any]:
    gone = [axis for axis, letter in enumerate(letters) if letter not in kept]
    if not gone:
        return letters, x
    return "".join(letter for letter in letters if letter in kept), b.reduce("sum", x, gone)


def _contract(b: AtenBuilder, xl: str, x: Any, yl: str, y: Any, needed: set[str]) -> tuple[str, Any]:
    """One product of two operands: batch letters, then rows, columns and what is summed over."""
    xl, x = _summed(b, xl, x, needed | set(yl))
    yl, y = _summed(b, yl, y, needed | set(xl))
    x_size, y_size = dict(zip(xl, x.shape, strict=True)), dict(zip(yl, y.shape, strict=True))
    shared = [letter for letter in xl if letter in yl]
    batch = [letter for letter in shared if letter in needed]
    inner = [letter for letter in shared if letter not in needed]
    rows = [letter for letter in xl if letter not in yl]
    columns = [letter for letter in yl if letter not in xl]
    # A size of 1 broadcasts against the other operand's.
    size = {c: y_size[c] if isinstance(x_size[c], int) and x_size[c] == 1 else x_size[c] for c in shared}
    x = b.expand(x, [size.get(letter, own) for letter, own in zip(xl, x.shape, strict=True)])
    y = b.expand(y, [size.get(letter, own) for letter, own in zip(yl, y.shape, strict=True)])
    x = b.transpose(x, [xl.index(letter) for letter in batch + rows + inner])
    y = b.transpose(y, [yl.index(letter) for letter in batch + inner + columns])
    lead = [size[letter] for letter in batch]
    row_sizes, column_sizes = [x_size[letter] for letter in rows], [y_size[letter] for letter in columns]
    depth = dims.product(size[letter] for letter in inner)
    left = b.reshape(x, [*lead, dims.product(row_sizes), depth])
    right = b.reshape(y, [*lead, depth, dims.product(column_sizes)])
    product = b.reshape(_matmul(b, left, right), [*lead, *row_sizes, *column_sizes])
    return "".join(batch + rows + columns), product


# --- attention ---


@row("aten.scaled_dot_product_attention", "aten._scaled_dot_product_attention_math")
def attention(
    b: AtenBuilder, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout_p:
        raise UnsupportedCaseError("attention dropout in training mode; call model.eval() before export")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    lead = list(b.out_shape[:-2])
    if len(lead) == 0:
        query, key, value = (b.unsqueeze(x, 0) for x in (query, key, value))
    elif len(lead) == 1:
        # Without heads, the one leading dimension is theirs.
        query, key, value = (b.expand(x, [*lead, *x.shape[-2:]]) for x in (query, key, value))
    else:
        heads = lead[:-1]
        query, key, value = (
            b.expand(x, [*heads, x.shape[-3] if enable_gqa else lead[-1], *x.shape[-2:]]) for x in (query, key, value)
        )
    if attn_mask is not None and attn_mask.dtype != "bool":
        attn_mask = b.cast(attn_mask, query.dtype)
    if attn_mask is not None:
        attn_mask = _mask(b, attn_mask, [*lead, query.shape[-2], key.shape[-2]])
    result = b.op("attention", query, key, value, attn_mask, scale=float(scale), is_causal=is_causal)
    return b.reshape(result, b.out_shape)


def _mask(b: AtenBuilder, mask: Any, shape: list[Any]) -> Any:
    """The mask with sizes spelt as in the scores, static ones left to broadcast; no heads means one more dimension."""
    first = len(shape) - len(mask.shape)
    spelt = [1 if isinstance(s, int) and s == 1 else shape[first + axis] for axis, s in enumerate(mask.shape)]
    return b.reshape(mask, spelt)


@row("aten._scaled_dot_product_flash_attention_for_cpu", "aten._scaled_dot_product_flash_attention")
def flash_attention(
    b: AtenBuilder, query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: Any = None, scale: float | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """What decompositions make of attention; its second result, for gradients, is not computed."""
    return attention(b, query, key, value, attn_mask, dropout_p, is_causal, scale), None


# --- mixture of experts ---


@row("transformers.grouped_mm_fallback", "aten._grouped_mm")
def grouped_mm(b: AtenBuilder, x: Any, weight: Any, offs: Any, *args: Any) -> Any:
    """Rows of x [M, K] up to offs[0] times weight[0], the next times weight[1], and so on; weight [G, K, N].

    Every group's product is taken for all rows and the right one is picked: exact, at the cost of G products.
    """
    groups = weight.shape[0]
    if len(x.shape) != 2 or len(weight.shape) != 3 or not isinstance(groups, int):
        raise UnsupportedCaseError("grouped_mm of other than [M, K] by a static number of [K, N]")
    result = None
    place = b.unsqueeze(b.iota(x.shape[0], offs.dtype), 1)
    for group in range(groups):
        product = _matmul(b, x, b.squeeze(b.slice(weight, 0, group, group + 1), 0))
        if result is None:
            result = product
            continue
        after = b.slice(offs, 0, group - 1, group)
        result = b.where(b.binary("ge", place, after), product, result)
    return result
