"""Compiles a `vecmath` function into a loop over two or three arrays, for the tests of it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mlir import ir
from mlir.dialects import llvm
from mlir.passmanager import PassManager

LOWER = (
    "builtin.module(convert-scf-to-cf,convert-math-to-llvm,convert-vector-to-llvm,convert-arith-to-llvm,"
    "convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"
)
HOST_FLAGS = ("-target", "x86_64-linux-musl", "-march=x86-64-v3")
SVE_FLAGS = ("-target", "aarch64-linux-gnu", "-mcpu=neoverse-v1")

# Reads f32s from standard input and writes one function of them to standard output, without a C library.
AARCH64_DRIVER = """
static long call(long number, long a, long b, long c) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
}
static float in[1 << 18], out[1 << 18];
void ENTRY(const float *, float *, long);
void _start(void) {
  long size = 0, got;
  while ((got = call(63, 0, (long)((char *)in + size), (long)sizeof in - size)) > 0) size += got;
  ENTRY(in, out, size / 4);
  for (long sent = 0; sent < size;) sent += call(64, 1, (long)((char *)out + sent), size - sent);
  call(93, 0, 0, 0);
}
"""


@dataclass(frozen=True)
class Shape:
    """A lane type: `lanes` 0 is a scalar."""

    element: str
    lanes: int
    is_scalable: bool = False

    @property
    def name(self) -> str:
        """What the entry points are called by."""
        return f"{self.element}_{'s' if self.is_scalable else 'v'}{self.lanes}"

    @property
    def text(self) -> str:
        """The MLIR type."""
        if not self.lanes:
            return self.element
        return f"vector<{f'[{self.lanes}]' if self.is_scalable else self.lanes}x{self.element}>"


def loop_module(rules: dict[str, Callable[..., ir.Value]], shape: Shape, arity: dict[str, int]) -> str:
    """LLVM IR with one `<name>_<shape>(inputs..., out, n)` a rule; n is a multiple of the lanes."""
    with ir.Context() as context, ir.Location.unknown():
        context.allow_unregistered_dialects = True  # `test.call` stands where the rule's operations go
        module = ir.Module.parse("\n".join(_loop_text(name, shape, arity.get(name, 1)) for name in rules))
        for function in module.body.operations:
            _fill(function, rules)
        PassManager.parse(LOWER).run(module.operation)
        return llvm.translate_module_to_llvmir(module.operation)


def _loop_text(name: str, shape: Shape, count: int) -> str:
    inputs = [f"%in{k}" for k in range(count)]
    loads = "\n".join(
        f"%p{k} = llvm.getelementptr {p}[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {shape.element}\n"
        f"%x{k} = llvm.load %p{k} {{alignment = 4 : i64}} : !llvm.ptr -> {shape.text}"
        for k, p in enumerate(inputs)
    )
    step = f"%step = arith.constant {max(shape.lanes, 1)} : i64\n"
    if shape.is_scalable:
        step = (
            "%scale = vector.vscale\n%scale64 = arith.index_cast %scale : index to i64\n"
            f"%base = arith.constant {shape.lanes} : i64\n%step = arith.muli %scale64, %base : i64\n"
        )
    arguments = ", ".join(f"{p}: !llvm.ptr" for p in [*inputs, "%out"])
    call = f'"test.call"({", ".join(f"%x{k}" for k in range(count))})'
    types = ", ".join([shape.text] * count)
    return f"""func.func @{name}_{shape.name}({arguments}, %n: i64) {{
  %zero = arith.constant 0 : i64
  {step}
  scf.for %i = %zero to %n step %step : i64 {{
    {loads}
    %y = {call} : ({types}) -> {shape.text}
    %q = llvm.getelementptr %out[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {shape.element}
    llvm.store %y, %q {{alignment = 4 : i64}} : {shape.text}, !llvm.ptr
  }}
  return
}}"""


def _fill(function: ir.OpView, rules: dict[str, Callable[..., ir.Value]]) -> None:
    calls: list[ir.Operation] = []

    def collect(op: ir.Operation) -> ir.WalkResult:
        if op.name == "test.call":
            calls.append(op)
        return ir.WalkResult.ADVANCE

    function.operation.walk(collect)
    name = ir.StringAttr(function.attributes["sym_name"]).value.rsplit("_", 2)[0]
    for call in calls:
        with ir.InsertionPoint(call):
            result = rules[name](*call.operands)
        call.results[0].replace_all_uses_with(result)
        call.erase()


def compile_object(llvm_ir: str, path: Path, flags: tuple[str, ...]) -> Path:
    """The object file of the IR."""
    source = path.with_suffix(".ll")
    source.write_text(llvm_ir)
    command = [sys.executable, "-m", "ziglang", "clang", "-O3", "-ffreestanding", "-fPIC", "-Wno-override-module"]
    subprocess.run([*command, *flags, "-c", str(source), "-o", str(path)], check=True, capture_output=True, text=True)
    return path


def link_shared(path: Path, library: Path) -> Path:
    """The shared library of one object; fails where a symbol is undefined."""
    command = [sys.executable, "-m", "ziglang", "ld.lld", "-shared", "-nostdlib", "-z", "defs"]
    subprocess.run([*command, str(path), "-o", str(library)], check=True, capture_output=True, text=True)
    return library


def run_emulated(path: Path, entry: str, inputs: np.ndarray) -> np.ndarray:
    """The f32 entry point of an AArch64 object, run by qemu with every extension; the count is a power of two."""
    driver = path.with_suffix(".c")
    driver.write_text(AARCH64_DRIVER)
    main = path.with_suffix(".main.o")
    clang = [sys.executable, "-m", "ziglang", "clang", *SVE_FLAGS, "-O1", "-ffreestanding", "-fno-stack-protector"]
    subprocess.run([*clang, f"-DENTRY={entry}", "-c", str(driver), "-o", str(main)], check=True, capture_output=True)
    program = path.with_suffix(".exe")
    lld = [sys.executable, "-m", "ziglang", "ld.lld", "-static", "-nostdlib"]
    subprocess.run([*lld, str(main), str(path), "-o", str(program)], check=True, capture_output=True)
    done = subprocess.run(
        ["qemu-aarch64", "-cpu", "max", str(program)], input=inputs.tobytes(), capture_output=True, check=True
    )
    return np.frombuffer(done.stdout, np.float32)


def load(library: Path, name: str, shape: Shape) -> Callable[..., np.ndarray]:
    """The compiled rule as a function over arrays of any length."""
    entry = getattr(ctypes.CDLL(str(library)), f"{name}_{shape.name}")
    dtype = {"f32": np.float32, "f64": np.float64}[shape.element]
    lanes = max(shape.lanes, 1)

    def call(*inputs: np.ndarray) -> np.ndarray:
        size = len(inputs[0])
        padded = [np.resize(x.astype(dtype), -(-size // lanes) * lanes) for x in inputs]
        out = np.empty_like(padded[0])
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in [*padded, out]]
        entry(*pointers, ctypes.c_int64(len(out)))
        return out[:size]

    return call
