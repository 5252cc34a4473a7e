"""The vector math against truth of twice the precision, and against PyTorch on the same points."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlc.dialects.vecmath as vecmath
import numpy as np
import pytest
import vecmath_build as build
from vecmath_build import Shape

special = pytest.importorskip("scipy.special")
F32_V8, F64_V4, F32, F64 = Shape("f32", 8), Shape("f64", 4), Shape("f32", 0), Shape("f64", 0)
INF = math.inf


def _by_mpmath(function: str) -> Callable[[np.ndarray], np.ndarray]:
    def truth(x: np.ndarray) -> np.ndarray:
        mp = pytest.importorskip("mpmath")
        rules = {
            "erfinv": mp.erfinv,
            "digamma": mp.digamma,
            "i0": lambda v: mp.besseli(0, v),
            "lgamma": lambda v: mp.log(abs(mp.gamma(v))),
            "erf": mp.erf,
            "erfc": mp.erfc,
        }
        with mp.workdps(40):
            return np.array([np.longdouble(mp.nstr(rules[function](mp.mpf(float(v))), 25)) for v in x])

    return truth


@dataclass(frozen=True)
class Case:
    """One function: its truth, where it is swept, and the ulps it may be off where results are normal numbers."""

    name: str
    truth: Callable[..., np.ndarray]
    low: float
    high: float
    f32_ulp: float
    f64_ulp: float
    is_slow_in_f64: bool = False  # the truth in f64 is mpmath's
    f64_scale: float = 1.0  # how much wider the sweep in f64 is


CASES = (
    Case("exp", np.exp, -104, 89, 0.54, 0.53, f64_scale=7.2),
    Case("exp2", np.exp2, -151, 129, 0.82, 0.67, f64_scale=7.1),
    Case("expm1", np.expm1, -104, 89, 0.85, 0.8, f64_scale=8),
    Case("log", np.log, 0, INF, 0.502, 0.63),
    Case("log2", np.log2, 0, INF, 0.502, 0.501),
    Case("log10", np.log10, 0, INF, 0.502, 0.501),
    Case("log1p", np.log1p, -1, INF, 0.502, 0.65),
    Case("sin", np.sin, -INF, INF, 0.501, 0.501),
    Case("cos", np.cos, -INF, INF, 0.501, 0.501),
    Case("tan", np.tan, -INF, INF, 0.501, 0.502),
    Case("asin", np.arcsin, -1, 1, 0.65, 0.7),
    Case("acos", np.arccos, -1, 1, 0.65, 0.7),
    Case("atan", np.arctan, -INF, INF, 0.51, 0.501),
    Case("sinh", np.sinh, -91, 91, 0.51, 0.8, f64_scale=7.9),
    Case("cosh", np.cosh, -91, 91, 0.502, 0.501, f64_scale=7.9),
    Case("tanh", np.tanh, -20, 20, 0.51, 0.6),
    Case("asinh", np.arcsinh, -INF, INF, 1.0, 1.2),
    Case("acosh", np.arccosh, 1, INF, 1.3, 1.7),
    Case("atanh", np.arctanh, -1, 1, 0.62, 0.7),
    Case("erf", special.erf, -6, 6, 0.63, 0.501, is_slow_in_f64=True),
    Case("erfc", special.erfc, -6, 10.05, 0.6, 0.501, is_slow_in_f64=True, f64_scale=2.6),
    Case("erfinv", special.erfinv, -1, 1, 0.501, 0.501, is_slow_in_f64=True),
    Case("sigmoid", lambda x: 1 / (1 + np.exp(-x)), -87, 100, 2.45, 2.3, f64_scale=7.5),
    Case("cbrt", np.cbrt, -INF, INF, 0.501, 0.51),
    Case("lgamma", special.gammaln, 0, 200, 0.53, 0.502, is_slow_in_f64=True),
    Case("digamma", special.digamma, 0, 200, 0.501, 1e7, is_slow_in_f64=True),  # f64: 1.46 is its root
    Case("i0", special.i0, -91.8, 91.8, 0.56, 0.502, is_slow_in_f64=True, f64_scale=7.5),
    Case("rsqrt", lambda x: 1 / np.sqrt(x), 0, INF, 1.5, 1.5),
    Case("pow", np.power, 0, INF, 0.501, 0.501),
    Case("atan2", np.arctan2, -INF, INF, 0.51, 0.501),
)
ARITY = {"pow": 2, "atan2": 2}
RULES = {case.name: getattr(vecmath, case.name) for case in CASES}


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[Shape, Path]:
    """A shared library a shape; linking refuses undefined symbols, so no call to a math library is left."""
    folder = tmp_path_factory.mktemp("vecmath")
    libraries = {}
    for shape in (F32_V8, F64_V4, F32, F64):
        path = folder / f"{shape.name}.o"
        build.compile_object(build.loop_module(RULES, shape, ARITY), path, build.HOST_FLAGS)
        libraries[shape] = build.link_shared(path, path.with_suffix(".so"))
    return libraries


def _points(case: Case, dtype: type, count: int) -> list[np.ndarray]:
    """Random bit patterns (every exponent), uniform points, and points close to 0 and to both ones."""
    rng = np.random.default_rng(7)
    scale = case.f64_scale if dtype == np.float64 else 1.0
    low, high = case.low * scale, case.high * scale
    integer = np.uint32 if dtype == np.float32 else np.uint64
    patterns = rng.integers(0, np.iinfo(integer).max, count, dtype=integer).view(dtype)
    signs = rng.choice([-1.0, 1.0], count)
    parts = [
        patterns[np.isfinite(patterns)],
        rng.uniform(-2, 2, count),
        rng.uniform(max(low, -40), min(high, 40), count),
        np.exp2(rng.uniform(-30, 12, count)) * signs,
        1 + np.exp2(rng.uniform(-30, -1, count)) * signs,
        -1 + np.exp2(rng.uniform(-30, -1, count)) * signs,
    ]
    if np.isfinite(high) and np.isfinite(low):
        parts.append(rng.uniform(low, high, count))
    x = np.concatenate([part.astype(dtype) for part in parts])
    x = x[(x >= low) & (x <= high)]
    if case.name not in ARITY:
        return [x]
    y = rng.permutation(np.concatenate([part.astype(dtype) for part in parts]))[: len(x)]
    y = np.resize(y, len(x))
    if case.name == "pow":  # most pairs of random bits overflow; scale the exponents so that most do not
        reach = 80.0 if dtype == np.float32 else 700.0
        logs = np.maximum(np.abs(np.log(np.maximum(x.astype(np.float64), 1e-300))), 1e-6)
        y = np.where(rng.uniform(size=len(x)) < 0.7, rng.uniform(-reach, reach, len(x)) / logs, y).astype(dtype)
    return [x, y]


def _ulps(got: np.ndarray, truth: np.ndarray, dtype: type) -> np.ndarray:
    """The error in ulps of the truth; 0 where the truth is no normal number but for what a NaN or inf must match."""
    facts = np.finfo(dtype)
    rounded = truth.astype(dtype)
    is_normal = np.isfinite(rounded) & (np.abs(truth) >= facts.tiny)
    _, exponent = np.frexp(np.where(is_normal, truth, 1))
    error = np.abs(got.astype(truth.dtype) - truth) / np.ldexp(np.ones_like(truth), exponent - 1 - facts.nmant)
    error = np.where(is_normal, error, 0)
    is_wrong = np.where(
        np.isfinite(rounded), ~np.isfinite(got), ~((got == rounded) | (np.isnan(got) & np.isnan(rounded)))
    )
    return np.where(is_wrong, INF, error).astype(np.float64)


def _sweep(case: Case, shape: Shape, library: Path, count: int) -> tuple[float, float | None]:
    """(our largest error, PyTorch's or None) in ulps."""
    dtype = np.float32 if shape.element == "f32" else np.float64
    inputs = _points(case, dtype, count)
    truth_type, rule = (np.float64, case.truth) if dtype == np.float32 else (np.longdouble, case.truth)
    if dtype == np.float64 and case.is_slow_in_f64:
        rng = np.random.default_rng(3)
        inputs = [rng.choice(x, min(len(x), 600), replace=False) for x in inputs]
        rule = _by_mpmath(case.name)
    with np.errstate(all="ignore"):
        truth = rule(*(x.astype(truth_type) for x in inputs)).astype(truth_type)
        ours = float(_ulps(build.load(library, case.name, shape)(*inputs), truth, dtype).max())
        try:
            import torch
        except ImportError:
            return ours, None
        function = getattr(torch, case.name, None)
        if function is None:
            return ours, None
        theirs = function(*(torch.from_numpy(x) for x in inputs)).numpy()
        return ours, float(_ulps(theirs, truth, dtype).max())


def _check(case: Case, shape: Shape, library: Path, count: int) -> None:
    ours, theirs = _sweep(case, shape, library, count)
    column = "-" if theirs is None else f"{theirs:.4f}"
    print(f"\n{case.name:8s} {shape.element}  ours {ours:.4f} ulp  torch {column} ulp")
    assert ours <= (case.f32_ulp if shape.element == "f32" else case.f64_ulp)
    if theirs is not None:
        assert ours <= max(theirs, 0.501)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_f32_error(case: Case, compiled: dict[Shape, Path]) -> None:
    _check(case, F32_V8, compiled[F32_V8], 60_000)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no type wider than f64 to judge f64 by")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_f64_error(case: Case, compiled: dict[Shape, Path]) -> None:
    _check(case, F64_V4, compiled[F64_V4], 12_000)


# The f32 bounds without f64, where they differ from a machine that has it.
ULP_WITHOUT_F64 = {
    "exp": 0.65,
    "cosh": 0.55,
    "sinh": 0.78,
    "tanh": 0.6,
    "log": 0.65,
    "log2": 0.67,
    "log10": 0.67,
    "log1p": 0.7,
    "sin": 0.87,
    "cos": 0.85,
    "tan": 1.1,
    "atan": 1.45,
    "atan2": 1.45,
    "erf": 1.3,
    "erfc": 4.5,
    "erfinv": 2.6,
    "lgamma": 8,
    "digamma": 1e6,  # near its root
    "i0": 4.5,
    "pow": 0.6,
}


@pytest.mark.parametrize("lanes", [8, 0])
def test_f32_without_f64(lanes: int, tmp_path: Path) -> None:
    """No f64 is left, and the bounds that the documentation gives hold."""
    shape = Shape("f32", lanes)
    with vecmath.without_f64():
        text = build.loop_module(RULES, shape, ARITY)
    assert "double" not in text
    if not lanes:
        return
    path = build.compile_object(text, tmp_path / "narrow.o", build.HOST_FLAGS)
    library = build.link_shared(path, tmp_path / "narrow.so")
    for case in CASES:
        ours, _ = _sweep(case, shape, library, 20_000)
        print(f"{case.name:8s} without f64 {ours:.4f} ulp")
        assert ours <= ULP_WITHOUT_F64.get(case.name, case.f32_ulp), case.name


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_f32_error_dense(case: Case, compiled: dict[Shape, Path]) -> None:
    _check(case, F32_V8, compiled[F32_V8], 2_000_000)


SPECIAL_POINTS = (math.nan, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -3.0, 1e30, -1e30)
# Where ours is right and the truth used here is not, or where PyTorch's convention is kept: x -> result.
EXCEPTIONS = {
    ("i0", "inf"): INF,
    ("i0", "-inf"): INF,
    ("digamma", "0.0"): -INF,
    ("digamma", "-0.0"): INF,
    ("digamma", "-inf"): math.nan,
    ("lgamma", "-inf"): INF,
    ("lgamma", "5e-324"): 744.4400719213812,
    ("lgamma", "-5e-324"): 744.4400719213812,
    ("erfinv", "-0.0"): -0.0,
}


@pytest.mark.parametrize("shape", [F32_V8, F64_V4], ids=lambda shape: shape.element)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_special_values(case: Case, shape: Shape, compiled: dict[Shape, Path]) -> None:
    dtype = np.float32 if shape.element == "f32" else np.float64
    tiny = float(np.finfo(dtype).smallest_subnormal)
    x = np.array([*SPECIAL_POINTS, tiny, -tiny], dtype)
    inputs = [x] if case.name not in ARITY else [grid.ravel() for grid in np.meshgrid(x, x)]
    got = build.load(compiled[shape], case.name, shape)(*inputs)
    with np.errstate(all="ignore"):
        truth = case.truth(*(v.astype(np.float64) for v in inputs)).astype(dtype)
    for k, point in enumerate(zip(*inputs, strict=True)):
        expected = dtype(EXCEPTIONS.get((case.name, str(point[0])), truth[k]))
        if np.isnan(expected):
            assert np.isnan(got[k]), (point, got[k])
        elif expected == 0 or np.isinf(expected):
            assert got[k] == expected and np.signbit(got[k]) == np.signbit(expected), (point, got[k], expected)
        else:
            np.testing.assert_allclose(got[k], expected, rtol=1e-6, atol=2 * tiny, err_msg=str(point))


@pytest.mark.parametrize("pair", [(F32, F32_V8), (F64, F64_V4)], ids=["f32", "f64"])
def test_scalar_gives_the_same_bits_as_vector(pair: tuple[Shape, Shape], compiled: dict[Shape, Path]) -> None:
    dtype = np.float32 if pair[0].element == "f32" else np.float64
    for case in CASES:
        inputs = [x[:4000] for x in _points(case, dtype, 1000)]
        scalar, vector = (build.load(compiled[shape], case.name, shape)(*inputs) for shape in pair)
        np.testing.assert_array_equal(scalar, vector, err_msg=case.name)


def test_denormal_results_are_kept(compiled: dict[Shape, Path]) -> None:
    x = np.linspace(-103, -87.5, 5000).astype(np.float32)
    truth = np.exp(x.astype(np.float64))
    error = np.abs(build.load(compiled[F32_V8], "exp", F32_V8)(x) - truth) / 2.0**-149
    assert error.max() <= 0.51
    if np.finfo(np.longdouble).nmant < 63:
        return
    for name, low, high in (("exp", -745.2, -708.3), ("exp2", -1075.5, -1021.9)):
        x = np.linspace(low, high, 5000)
        truth = getattr(np, name)(x.astype(np.longdouble))
        error = np.abs(build.load(compiled[F64_V4], name, F64_V4)(x) - truth)
        assert (error / np.longdouble(2) ** -1074).max() <= 0.56


def test_exp_nonpositive(tmp_path: Path) -> None:
    """About 1 ulp from e**x down to the smallest normal number, 0 or so below, NaN kept."""
    for shape, dtype, low in ((F32_V8, np.float32, -87.3), (F64_V4, np.float64, -708.3)):
        text = build.loop_module({"exp_nonpositive": vecmath.exp_nonpositive}, shape, {})
        path = build.compile_object(text, tmp_path / f"{shape.name}.o", build.HOST_FLAGS)
        call = build.load(build.link_shared(path, path.with_suffix(".so")), "exp_nonpositive", shape)
        x = np.random.default_rng(1).uniform(low, 0, 100_000).astype(dtype)
        truth = np.exp(x.astype(np.longdouble))
        assert _ulps(call(x), truth, dtype).max() <= 1.01
        assert list(call(np.array([0.0, -0.0, -INF, -1e30], dtype))) == [1, 1, 0, 0]
        assert np.isnan(call(np.array([math.nan], dtype))[0])


def test_normal_cdf(tmp_path: Path) -> None:
    """Within 1.3e-7 (f32), as PyTorch's GELU is; 0 and 1 to the last bit where x would multiply an error; NaN kept."""
    path = build.compile_object(
        build.loop_module({"normal_cdf": vecmath.normal_cdf}, F32_V8, {}), tmp_path / "cdf.o", build.HOST_FLAGS
    )
    call = build.load(build.link_shared(path, path.with_suffix(".so")), "normal_cdf", F32_V8)
    x = np.linspace(-9, 9, 400_000).astype(np.float32)
    truth = np.array([0.5 * math.erfc(-v * math.sqrt(0.5)) for v in x.astype(np.float64)])
    worst = np.abs(call(x) - truth).max()
    assert worst <= 1.3e-7, worst
    assert list(call(np.array([-INF, -1e30, -5.6, 0.0, 5.6, 1e30, INF], np.float32))) == [0, 0, 0, 0.5, 1, 1, 1]
    assert np.isnan(call(np.array([math.nan], np.float32))[0])


def test_exp2_of_a_softmax(tmp_path: Path) -> None:
    """About 1 ulp from 2**x down to 2**(2 - bias); below that 0, or that for the floored one; NaN kept."""
    rules = {"exp2_nonpositive": vecmath.exp2_nonpositive, "exp2_floored": vecmath.exp2_floored}
    for shape, dtype, low in ((F32_V8, np.float32, -125.0), (F64_V4, np.float64, -1021.0)):
        text = build.loop_module(rules, shape, {})
        path = build.compile_object(text, tmp_path / f"{shape.name}.o", build.HOST_FLAGS)
        library = build.link_shared(path, path.with_suffix(".so"))
        x = np.random.default_rng(1).uniform(low, 0, 100_000).astype(dtype)
        truth = np.exp2(x.astype(np.longdouble))
        for name, least in (("exp2_nonpositive", 0.0), ("exp2_floored", 2.0**low)):
            call = build.load(library, name, shape)
            assert _ulps(call(x), truth, dtype).max() <= 1.01
            assert list(call(np.array([0.0, -0.0, -INF, -1e30], dtype))) == [1, 1, least, least]
            assert np.isnan(call(np.array([math.nan], dtype))[0])


@pytest.mark.parametrize("element", ["f32", "f64"])
def test_scalable_vectors_compile_without_calls(element: str, tmp_path: Path, compiled: dict[Shape, Path]) -> None:
    """SVE code of every function links alone; under qemu it gives the bits that x86-64 gives."""
    shape = Shape(element, 4 if element == "f32" else 2, is_scalable=True)
    path = build.compile_object(build.loop_module(RULES, shape, ARITY), tmp_path / "sve.o", build.SVE_FLAGS)
    build.link_shared(path, tmp_path / "sve.so")
    if element == "f64" or not shutil.which("qemu-aarch64"):
        return
    for name in ("exp", "tanh", "erf", "sin", "log", "sigmoid"):
        case = next(case for case in CASES if case.name == name)
        x = np.resize(_points(case, np.float32, 3000)[0], 1 << 14)
        got = build.run_emulated(path, f"{name}_{shape.name}", x)
        np.testing.assert_array_equal(got, build.load(compiled[F32_V8], name, F32_V8)(x), err_msg=name)
