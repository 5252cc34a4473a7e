"""Builds one L2 kernel from an emitter and calls it: on this machine by ctypes, for Arm in a C program under qemu."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mlc.targets.cpu.isa.facts import Isa
from mlc.targets.cpu.isa.index import i64
from mlc.targets.cpu.isa.memory import pointer_type
from mlir import ir
from mlir.dialects import arith, func, llvm
from mlir.passmanager import PassManager

LOWER = (
    "builtin.module(convert-scf-to-cf,convert-math-to-llvm,convert-vector-to-llvm,convert-arith-to-llvm,"
    "convert-index-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"
)
AVX2 = Isa(vector_bits=256, register_count=16)
SVE = Isa(vector_bits=256, register_count=32, is_scalable=True)
NEON = Isa(vector_bits=128, register_count=32)
HOST_FLAGS = ("-target", "x86_64-linux-gnu", "-march=x86-64-v3", "-mtune=znver3")
ARM_TARGET = ("-target", "aarch64-linux-musl")
ARM_CPUS = {SVE: "neoverse-v1", NEON: "cortex-a72"}

# emit(slots, begin, end): slots are the pointers (or i64 values, where the argument was an int) of the call.
Emit = Callable[[list[ir.Value], ir.Value, ir.Value], None]


def lower_kernel(emit: Emit, args: Sequence[np.ndarray | int]) -> str:
    """LLVM IR of `k(args, begin, end)`, its slots typed as `args` are."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            kernel = func.FuncOp("k", ([pointer_type(), i64(), i64()], []))
            entry = kernel.add_entry_block()
        with ir.InsertionPoint(entry):
            table, begin, end = entry.arguments
            slots = []
            for number, arg in enumerate(args):
                kind = i64() if isinstance(arg, int) else pointer_type()
                address = llvm.getelementptr(pointer_type(), table, [], [number], i64(), llvm.GEPNoWrapFlags.none)
                slots.append(llvm.LoadOp(kind, address, alignment=8).result)
            emit(slots, begin, end)
            func.return_([])
        module.operation.verify()
        PassManager.parse(LOWER).run(module.operation)
        return llvm.translate_module_to_llvmir(module.operation)


def _clang(*args: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ziglang", *args], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(args)}\n{done.stderr}")


@dataclass
class HostKernel:
    """A compiled kernel in this process."""

    path: Path

    def __post_init__(self) -> None:
        self._call = ctypes.CDLL(str(self.path)).k
        self._call.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        self._call.restype = None

    @property
    def assembly(self) -> str:
        """The machine code in words."""
        tool = Path(sys.prefix) / "lib/python3.11/site-packages/llvm/bin/llvm-objdump"
        command = [str(tool), "-d", "--no-show-raw-insn", "-M", "intel", str(self.path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def bind(self, args: Sequence[np.ndarray | int], tiles: int) -> Callable[[], None]:
        """A call on these arguments, all tiles."""
        table = (ctypes.c_int64 * len(args))(*[a if isinstance(a, int) else a.ctypes.data for a in args])

        def call(_keep: object = args) -> None:
            self._call(table, 0, tiles)

        return call


def build_host(
    emit: Emit, args: Sequence[np.ndarray | int], folder: Path, flags: Sequence[str] = HOST_FLAGS
) -> HostKernel:
    source, target, library = folder / "k.ll", folder / "k.o", folder / "k.so"
    source.write_text(lower_kernel(emit, args))
    _clang("clang", *flags, "-O3", "-ffreestanding", "-fPIC", "-c", str(source), "-o", str(target))
    _clang("ld.lld", "-shared", "-o", str(library), str(target))
    return HostKernel(library)


_ARM_MAIN = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
void k(void **args, int64_t begin, int64_t end);
static void *read_file(const char *name, int64_t size) {
  void *data = aligned_alloc(64, (size + 63) / 64 * 64);
  FILE *file = fopen(name, "rb");
  if (!file || fread(data, 1, size, file) != (size_t)size) exit(3);
  fclose(file);
  return data;
}
int main(int argc, char **argv) {
  void *args[16];
  int64_t tiles = atoll(argv[1]), count = (argc - 2) / 2, last = 0, i;
  for (i = 0; i < count; i++) {
    const char *name = argv[2 + 2 * i];
    int64_t size = atoll(argv[3 + 2 * i]);
    if (name[0] == '=') { args[i] = (void *)(intptr_t)size; continue; }
    args[i] = read_file(name, size);
    last = i;
  }
  k(args, 0, tiles);
  FILE *file = fopen(argv[2 + 2 * last], "wb");
  fwrite(args[last], 1, atoll(argv[3 + 2 * last]), file);
  fclose(file);
  return 0;
}
"""


def run_arm(isa: Isa, emit: Emit, args: Sequence[np.ndarray | int], tiles: int, folder: Path) -> None:
    """Runs the kernel under qemu; the last array argument is replaced by what it wrote."""
    source, main, target, program = folder / "k.ll", folder / "main.c", folder / "k.o", folder / "program"
    source.write_text(lower_kernel(emit, args))
    main.write_text(_ARM_MAIN)
    _clang(
        "clang", *ARM_TARGET, f"-mcpu={ARM_CPUS[isa]}", "-O2", "-ffreestanding", "-c", str(source), "-o", str(target)
    )
    _clang("cc", *ARM_TARGET, "-O1", "-static", str(main), str(target), "-o", str(program))
    words = []
    for number, arg in enumerate(args):
        if isinstance(arg, int):
            words += ["=", str(arg)]
        else:
            path = folder / f"arg{number}.bin"
            path.write_bytes(arg.tobytes())
            words += [str(path), str(arg.nbytes)]
    subprocess.run(["qemu-aarch64", "-cpu", "max,sve256=on", str(program), str(tiles), *words], check=True)
    last = max(i for i, a in enumerate(args) if not isinstance(a, int))
    args[last].ravel()[:] = np.frombuffer((folder / f"arg{last}.bin").read_bytes(), args[last].dtype)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy whose data begins at a multiple of 64 bytes."""
    block = np.empty(array.nbytes + 64, np.uint8)
    start = -block.ctypes.data % 64
    out = block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def constant_tiles(grid: Sequence[int]) -> int:
    return int(np.prod(grid, dtype=np.int64))


def as_i64(value: int) -> ir.Value:
    return arith.constant(i64(), value)
