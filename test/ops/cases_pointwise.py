"""Rows of the pointwise ops. An oracle takes the torch module, the operands as tensors, and the attributes."""

from __future__ import annotations

from case import ALL, BOOL, FLOATS, INTS, SIGNED, UNSIGNED, Case, integers, pointwise, values

_NUMBERS = FLOATS + INTS
_TORCH_INTS = (*SIGNED, "u8")  # torch's wider unsigned types have hardly an operation


def _torch_dtype(torch, name: str):
    names = {"f": "float", "i": "int", "u": "uint"}
    return {"bool": torch.bool, "bf16": torch.bfloat16}.get(name) or getattr(torch, names[name[0]] + name[1:])


def _cast(torch, x, dtype):
    return x.to(_torch_dtype(torch, dtype))


def _in_f64(name: str):
    return lambda torch, a, b: getattr(torch, name)(a.double(), b.double()).to(a.dtype)


def _gelu(torch, x, approximate):
    return torch.nn.functional.gelu(x, approximate="tanh" if approximate else "none")


def _truncating(torch, a, b):
    return torch.div(a, b, rounding_mode="trunc")



CASES: list[Case] = [
    # signs and rounding
    *pointwise("neg", dtypes=_NUMBERS, special=True),
    *pointwise("abs", dtypes=_NUMBERS, special=True),
    *pointwise("sign", dtypes=_NUMBERS, special=True),
    *pointwise("relu", dtypes=_NUMBERS, special=True),
    *pointwise("floor", dtypes=_NUMBERS, special=True, domain=(-9.0, 9.0)),
    *pointwise("ceil", dtypes=_NUMBERS, special=True, domain=(-9.0, 9.0)),
    *pointwise("trunc", dtypes=_NUMBERS, special=True, domain=(-9.0, 9.0)),
    *pointwise("round", dtypes=_NUMBERS, special=True, domain=(-9.0, 9.0)),
    Case("round", [(12,)], make={0: values(0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.0)}, name="halves"),
    # arithmetic
    *pointwise("add", 2, dtypes=ALL, special=True, oracle=lambda t, a, b: a + b),
    *pointwise("sub", 2, dtypes=_NUMBERS, special=True, oracle=lambda t, a, b: a - b),
    *pointwise("mul", 2, dtypes=ALL, special=True),
    *pointwise("div", 2, dtypes=FLOATS, special=True, oracle=lambda t, a, b: a / b),
    Case("div", [(9, 11), (9, 11)], _TORCH_INTS, domain=[(-100, 100), (1, 9)], oracle=_truncating),
    Case("div", [(9, 11), (9, 11)], SIGNED, domain=[(-100, 100), (-9, -1)], oracle=_truncating),
    Case("div", [(64,), (64,)], INTS, special=True, domain=(-3, 3), name="traps"),
    *pointwise("floor_div", 2, domain=(-8.0, 8.0), magnitude=0.0),
    Case("floor_div", [(9, 11), (9, 11)], _TORCH_INTS, domain=[(-100, 100), (1, 9)]),
    Case("floor_div", [(9, 11), (9, 11)], SIGNED, domain=[(-100, 100), (-9, -1)]),
    Case("floor_div", [(64,), (64,)], INTS, special=True, domain=(-3, 3), name="traps"),
    *pointwise("maximum", 2, dtypes=ALL, special=True),
    *pointwise("minimum", 2, dtypes=ALL, special=True),
    *pointwise("fmax", 2, dtypes=_NUMBERS, special=True),
    *pointwise("fmin", 2, dtypes=_NUMBERS, special=True),
    *pointwise("pow", 2, domain=[(0.1, 6.0), (-3.0, 3.0)]),
    *pointwise("pow", 2, special=True),
    Case("pow", [(64,), (64,)], make={1: integers(-5, 6)}, name="whole"),
    Case("pow", [(9, 11), (9, 11)], _TORCH_INTS, domain=[(-9, 9), (0, 12)]),
    Case("pow", [(9, 11), (9, 11)], SIGNED, domain=[(-3, 3), (-5, 5)], name="inverse"),
    *[
        case
        for op in ("remainder", "fmod")
        for case in (
            *pointwise(op, 2, domain=(-8.0, 8.0)),
            # in f64, since torch's f32 remainder gives NaN for a denormal divisor
            Case(op, [(64,), (64,)], special=True, domain=(-8.0, 8.0), name="special", oracle=_in_f64(op)),
            Case(op, [(64,), (64,)], ("f32", "f64", "bf16"), domain=[(-1e30, 1e30), (-1e-3, 1e-3)], name="far"),
            Case(op, [(9, 11), (9, 11)], _TORCH_INTS, domain=[(-100, 100), (1, 9)]),
            Case(op, [(9, 11), (9, 11)], SIGNED, domain=[(-100, 100), (-9, -1)]),
            Case(op, [(64,), (64,)], INTS, special=True, domain=(-3, 3), name="traps", make={1: integers(1, 5)}),
        )
    ],
    # functions of real numbers
    *pointwise("sqrt", domain=(0.0, 9.0), special=True),
    *pointwise("rsqrt", domain=(1e-3, 9.0), special=True),
    *pointwise("reciprocal", domain=(-9.0, 9.0), special=True),
    *pointwise("exp", domain=(-20.0, 20.0), special=True),
    *pointwise("exp_nonpositive", domain=(-80.0, 0.0)),
    *pointwise("exp2", domain=(-20.0, 20.0), special=True),
    *pointwise("expm1", domain=(-3.0, 3.0), special=True),
    *[case for op in ("log", "log2", "log10") for case in pointwise(op, domain=(1e-3, 99.0), special=True)],
    *pointwise("log1p", domain=(-0.9, 9.0), special=True),
    *[case for op in ("sin", "cos") for case in pointwise(op, domain=(-30.0, 30.0), special=True, magnitude=1.0)],
    *pointwise("tan", domain=(-1.5, 1.5), special=True),
    *[case for op in ("asin", "acos") for case in pointwise(op, domain=(-1.0, 1.0), special=True, magnitude=1.0)],
    *pointwise("atan", domain=(-9.0, 9.0), special=True),
    *pointwise("atan2", 2, domain=(-9.0, 9.0), special=True),
    *[case for op in ("sinh", "cosh", "asinh", "tanh") for case in pointwise(op, special=True)],
    *pointwise("erf", special=True, magnitude=1e-30),  # torch's own flushes denormals
    *pointwise("acosh", domain=(1.0, 99.0), special=True),
    *pointwise("atanh", domain=(-0.99, 0.99), special=True),
    *pointwise("erfc", domain=(-3.0, 3.0), special=True),
    *pointwise("erfinv", domain=(-0.999, 0.999), special=True, ulps=8.0),
    *pointwise("lgamma", domain=(0.1, 30.0), special=True, magnitude=8.0),
    *pointwise("digamma", domain=(0.1, 30.0), magnitude=8.0),
    *pointwise("i0", domain=(-9.0, 9.0), ulps=8.0),
    Case("lgamma", [(61,)], domain=(-9.0, -0.1), magnitude=64.0, name="negative"),
    Case("digamma", [(61,)], make={0: values(-0.75, -1.25, -2.5, -3.75, -8.5)}, magnitude=64.0, name="negative"),
    *pointwise("sigmoid", domain=(-30.0, 30.0), special=True),
    *pointwise("silu", domain=(-20.0, 20.0), special=True, magnitude=4.0),
    *pointwise("gelu", attrs={"approximate": False}, magnitude=4.0, oracle=_gelu),
    *pointwise("gelu", attrs={"approximate": True}, magnitude=4.0, oracle=_gelu),
    # comparison, logic, bits
    *[
        case
        for op in ("eq", "ne", "lt", "le", "gt", "ge")
        for case in (
            *pointwise(op, 2, dtypes=ALL, special=True),
            Case(op, [(99,), (99,)], FLOATS, make={0: integers(-2, 3), 1: integers(-2, 3)}, name="ties"),
        )
    ],
    *pointwise("isnan", special=True),
    *pointwise("isinf", special=True),
    *pointwise("logical_not", dtypes=BOOL, oracle=lambda t, x: ~x),
    *pointwise("logical_and", 2, dtypes=BOOL, oracle=lambda t, a, b: a & b),
    *pointwise("logical_or", 2, dtypes=BOOL, oracle=lambda t, a, b: a | b),
    *pointwise("logical_xor", 2, dtypes=BOOL, oracle=lambda t, a, b: a ^ b),
    *pointwise("bitwise_not", dtypes=INTS + BOOL, special=True),
    *[
        case
        for op in ("bitwise_and", "bitwise_or", "bitwise_xor")
        for case in pointwise(op, 2, dtypes=INTS + BOOL, special=True, domain=(-999, 999))
    ],
    *[
        case
        for op in ("shift_left", "shift_right")
        for case in (
            Case(op, [(9, 11), (9, 11)], INTS, domain=[(-(2**62), 2**62), (0, 7)]),
            Case(op, [(128,), (128,)], INTS, domain=[(-99, 99), (-3, 70)], name="far"),
        )
    ],
    # choice and conversion
    *[
        Case("where", shapes, ALL, special=True)
        for shapes in ([()] * 3, [(7,)] * 3, [(3, 0, 2)] * 3, [(5, 1), (7,), ()], [(3, 37), (3, 1), (37,)])
    ],
    *[
        Case("cast", [(5, 13)], SIGNED + FLOATS + BOOL, {"dtype": target}, domain=(-100.0, 100.0), oracle=_cast)
        for target in SIGNED + FLOATS + BOOL
    ],
    # a negative float as an unsigned integer is left open
    *[Case("cast", [(5, 13)], ALL, {"dtype": target}, domain=(0.0, 100.0), oracle=_cast) for target in UNSIGNED],
    *[Case("cast", [(5, 13)], UNSIGNED, {"dtype": target}, domain=(0.0, 100.0), oracle=_cast) for target in ALL],
    *[
        Case("cast", [(64,)], FLOATS, {"dtype": target}, special=True, oracle=_cast, name="special")
        for target in FLOATS + BOOL
    ],
    *[
        Case("cast", [(9, 11)], INTS, {"dtype": target}, special=True, domain=(-999, 999), oracle=_cast, name="special")
        for target in INTS
    ],
    Case(
        "cast", [(64,)], ("f32", "f64"), {"dtype": "bf16"}, oracle=_cast, name="halves",
        make={0: values(1 + 2.0**-8, 1 + 3 * 2.0**-8, 1e38, 2.0**-134)},
    ),
    *[
        Case("bitcast", [(7, 5)], (source,), {"dtype": target}, domain=(0.0, 100.0),
             oracle=lambda t, x, dtype: x.view(_torch_dtype(t, dtype)))
        for pair in (("f64", "i64"), ("f32", "i32"), ("f16", "i16"), ("bf16", "i16"), ("bf16", "f16"), ("i8", "u8"))
        for source, target in (pair, pair[::-1])
    ],
]


