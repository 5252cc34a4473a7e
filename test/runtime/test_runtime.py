"""Builds the C runtime, its examples and tests with CMake, and runs them: plain, sanitized, for Arm and bare metal."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import artifacts
import pytest
from mlc.firmware import write_static

ROOT = artifacts.ROOT
SOURCES = ROOT / "runtime/src"
ZIG = [sys.executable, "-m", "ziglang"]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
# Of an operating system, what port_posix.c asks for; of the C library, three functions (and a compiler's stack guard).
MAY_USE = {
    "memcpy", "memset", "memcmp", "bcmp", "mmap", "munmap", "mprotect", "madvise", "clock_gettime", "sched_yield",
    "getauxval", "prctl", "sysctlbyname", "pthread_create", "pthread_join", "pthread_mutex_init",
    "pthread_mutex_destroy", "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_init", "pthread_cond_destroy",
    "pthread_cond_wait", "pthread_cond_broadcast", "__clear_cache", "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_",
}  # fmt: skip


def run(*command: object, **environment: str) -> str:
    """Output of a command; its output as the failure where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout


def configure_and_build(folder: Path, *options: str, targets: Sequence[str] = ("all",)) -> Path:
    """A CMake build of the repository in `folder`."""
    if not shutil.which("cmake"):
        pytest.skip("needs cmake on the path")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    run("cmake", "-S", ROOT, "-B", folder, *generator, *options)
    run("cmake", "--build", folder, "--parallel", 2, "--target", *targets)
    return folder


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return configure_and_build(tmp_path_factory.mktemp("build"))


def sanitized(folder: Path, sanitizers: str, artifact_folder: Path, *targets: str) -> Path:
    """A sanitized build; skips where no compiler has the sanitizers."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs gcc or clang: zig cc brings no address or thread sanitizer")
    options = [f"-DMLC_SANITIZE={sanitizers}", f"-DMLC_TEST_ARTIFACTS={artifact_folder}"]
    return configure_and_build(folder, f"-DCMAKE_C_COMPILER={compiler}", *options, targets=targets)


def test_c_tests(build: Path) -> None:
    run("ctest", "--test-dir", build, "--output-on-failure")


def test_c_tests_under_address_sanitizer(tmp_path: Path, artifact_folder: Path) -> None:
    names = ("test_checksum", "test_model", "test_session", "test_static", "test_threads", "fuzz_model")
    folder = sanitized(tmp_path, "address,undefined", artifact_folder, *names)
    for name in names:
        run(folder / f"test/runtime/{name}", artifact_folder, UBSAN_OPTIONS="halt_on_error=1")


def test_pool_under_thread_sanitizer(tmp_path: Path, artifact_folder: Path) -> None:
    folder = sanitized(tmp_path, "thread", artifact_folder, "test_threads")
    run(folder / "test/runtime/test_threads", artifact_folder)


def test_undefined_sanitizer_of_zig(tmp_path: Path, artifact_folder: Path) -> None:
    if shutil.which("gcc") or shutil.which("clang"):
        pytest.skip("gcc's or clang's sanitizers run above")
    for name in ("test_model", "test_session"):
        program = tmp_path / name
        compile_test(program, ROOT / f"test/runtime/{name}.c", "-fsanitize=undefined", "-g")
        run(program, artifact_folder)


@pytest.mark.sweep
def test_fuzz_sweep(tmp_path: Path, artifact_folder: Path) -> None:
    folder = sanitized(tmp_path, "address,undefined", artifact_folder, "fuzz_model")
    fuzz = folder / "test/runtime/fuzz_model"
    run(fuzz, artifact_folder, 100_000, 1, UBSAN_OPTIONS="halt_on_error=1")


def runtime_sources() -> list[Path]:
    """The sources of the hosted library, as CMakeLists.txt lists them."""
    text = (ROOT / "CMakeLists.txt").read_text()
    listed = re.search(r"set\(MLC_SOURCES(.*?)\$\{MLC_PORT\}\)", text, re.DOTALL)
    assert listed
    return [*(ROOT / line for line in listed[1].split()), SOURCES / "port_posix.c"]


def compile_test(program: Path, source: Path, *flags: str) -> None:
    """A C test with the whole runtime, by zig cc."""
    include = f"-I{ROOT / 'runtime/include'}"
    run(*ZIG, "cc", "-std=c11", "-O2", *WARNINGS, *flags, include, *runtime_sources(), source, "-o", program)


def test_aarch64(tmp_path: Path, artifact_folder: Path) -> None:
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if qemu is None:
        pytest.skip("needs qemu-aarch64")
    for name in ("test_model", "test_session", "test_threads"):
        program = tmp_path / name
        source = ROOT / f"test/runtime/{name}.c"
        compile_test(program, source, "-target", "aarch64-linux-musl", "-static", "-fno-sanitize=all")
        # On Arm the artifact of the other machine is this machine's, and the other way round.
        folder = tmp_path / "artifacts"
        folder.mkdir(exist_ok=True)
        swapped = {"affine": "foreign", "foreign": "affine", "mixed_host_first": "mixed"}
        for name_here, name_there in swapped.items():
            shutil.copy(artifact_folder / f"{name_here}.mlc", folder / f"{name_there}.mlc")
        run(qemu, program, folder)


def test_bare_metal(tmp_path: Path) -> None:
    target = ["-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m7"]
    for source in bare_sources():
        compiled = tmp_path / f"{source.stem}.o"
        include = f"-I{ROOT}/runtime/include"
        run(*ZIG, "cc", *target, "-std=c11", "-Os", *WARNINGS, include, "-c", source, "-o", compiled)


def bare_sources() -> list[Path]:
    """The sources of the library where there is no operating system."""
    hosted = {"threads.c", "port_posix.c"}
    sources = [path for path in runtime_sources() if path.name not in hosted]
    return [*sources, SOURCES / "threads_none.c", SOURCES / "port_none.c"]


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_linked_in_model(arch: str, tmp_path: Path) -> None:
    emulator = [] if arch == artifacts.HOST else [shutil.which(f"qemu-{arch}")]
    if emulator == [None]:
        pytest.skip(f"needs qemu-{arch}")
    assembly, header, _ = write_static(
        tmp_path, "affine_model", artifacts.META, artifacts.target(arch), artifacts.chunks()
    )
    program = tmp_path / "program"
    flags = ["-target", f"{arch}-linux-musl", "-static", "-std=c11", "-O2", "-fno-sanitize=all"]
    include = [f"-I{ROOT / 'runtime/include'}", f"-I{header.parent}"]
    run(*ZIG, "cc", *flags, *include, *bare_sources(), assembly, ROOT / "test/runtime/static_program.c", "-o", program)
    run(*emulator, program, tmp_path)


def test_windows_port_compiles(tmp_path: Path) -> None:
    source, include = SOURCES / "port_windows.c", f"-I{ROOT}/runtime/include"
    flags = ["-target", "x86_64-windows-gnu", "-std=c11", *WARNINGS]
    run(*ZIG, "cc", *flags, include, "-c", source, "-o", tmp_path / "port.o")


def test_headers_are_cxx17(tmp_path: Path) -> None:
    source = tmp_path / "header.cc"
    source.write_text('#include "mlc_rt.h"\nint main() { return mlc_status(MLC_OK); }\n')
    compiler = [shutil.which("g++") or shutil.which("clang++")]
    words = compiler if compiler[0] else [*ZIG, "c++"]
    run(*words, "-std=c++17", *WARNINGS, f"-I{ROOT}/runtime/include", "-c", source, "-o", tmp_path / "header.o")


def test_library_uses_only_what_it_may(build: Path) -> None:
    if not shutil.which("nm"):
        pytest.skip("needs nm")
    lines = run("nm", build / "libmlc_rt.a").splitlines()
    fields = [line.split() for line in lines if line and not line.endswith(":")]
    undefined = {row[-1] for row in fields if row[-2] == "U"}
    defined = {row[-1] for row in fields if row[-2] in "TDBRCV"}
    assert undefined - defined <= MAY_USE


def test_library_has_no_globals(build: Path) -> None:
    if not shutil.which("objdump"):
        pytest.skip("needs objdump")
    rows = [line.split() for line in run("objdump", "-h", build / "libmlc_rt.a").splitlines()]
    # Tables of constants with pointers are in .data.rel.ro, which is written by the linker only.
    sizes = [int(row[2], 16) for row in rows if len(row) > 2 and re.fullmatch(r"\.(data|bss|tdata|tbss)", row[1])]
    assert sizes
    assert sum(sizes) == 0


def test_exported_symbols_are_the_header(build: Path) -> None:
    if not shutil.which("nm") or not sys.platform.startswith("linux"):
        pytest.skip("needs nm and an ELF library")
    lines = run("nm", "-D", "--defined-only", build / "libmlc_rt.so").splitlines()
    exported = {line.split()[-1] for line in lines}
    header = (ROOT / "runtime/include/mlc_rt.h").read_text()
    declared = set(re.findall(r"^MLC_API [^;(]*?(mlc_\w+)\(", header, re.MULTILINE))
    assert exported == declared


def test_package_is_found(build: Path, tmp_path: Path, artifact_folder: Path) -> None:
    run("cmake", "--install", build, "--prefix", tmp_path / "installed")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(consumer LANGUAGES C)\nfind_package(mlc_rt 1 REQUIRED)\n"
        f'add_executable(run_model "{ROOT}/examples/c/run_model.c")\n'
        "target_link_libraries(run_model PRIVATE mlc_rt::mlc_rt)\n"
    )
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'installed'}")
    run("cmake", "--build", tmp_path / "build")
    assert run(tmp_path / "build/run_model", artifact_folder / "affine.mlc", 2).startswith("y f32 [2, 8] -6 -4.5 ")


def test_example_says_why_it_fails(build: Path, artifact_folder: Path) -> None:
    program = build / "examples/c/run_model"
    done = subprocess.run([program, artifact_folder / "foreign.mlc"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "this artifact is for " in done.stderr
