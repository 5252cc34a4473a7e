"""MACHINES: one row a machine. `host` is worked out from the processor this runs on."""

from __future__ import annotations

import platform
from pathlib import Path

from mlc.dialects.machine import Machine

_V3 = ("avx2", "fma", "f16c", "bmi2")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")
_ZEN4 = (
    *_V4, "avx512bf16", "avx512vnni", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq",
    "gfni", "vaes", "vpclmulqdq",
)  # fmt: skip
_X86 = {"arch": "x86_64", "triple": "x86_64-linux-gnu"}
_ARM = {"arch": "aarch64", "triple": "aarch64-linux-gnu", "registers": 32, "l1_bytes": 65536, "l1_ways": 4}


def _rows(*machines: Machine) -> dict[str, Machine]:
    return {m.name: m for m in machines}


MACHINES: dict[str, Machine] = _rows(
    Machine("x86-64-v3", cpu="x86-64-v3", vector_bits=256, registers=16, features=_V3, **_X86),
    Machine("x86-64-v4", cpu="x86-64-v4", vector_bits=512, registers=32, l2_bytes=1 << 20, features=_V4, **_X86),
    Machine("zen3", cpu="znver3", vector_bits=256, registers=16, features=_V3, **_X86),
    Machine(
        "zen4",
        cpu="znver4",
        vector_bits=512,
        registers=32,
        l2_bytes=1 << 20,
        features=_ZEN4,
        dot="vdpbf16ps",
        **_X86,
    ),
    Machine(
        "zen5",
        cpu="znver5",
        vector_bits=512,
        registers=32,
        l1_bytes=49152,
        l1_ways=12,
        l2_bytes=1 << 20,
        features=_ZEN4,
        dot="vdpbf16ps",
        **_X86,
    ),
    Machine(
        "skylake-avx512", cpu="skylake-avx512", vector_bits=512, registers=32, l2_bytes=1 << 20, features=_V4, **_X86
    ),
    Machine("aarch64", cpu="generic", vector_bits=128, features=("neon",), **_ARM),
    Machine("graviton2", cpu="neoverse-n1", vector_bits=128, l2_bytes=1 << 20, features=("neon",), **_ARM),
    Machine(
        "graviton3",
        cpu="neoverse-v1",
        vector_bits=256,
        is_scalable=True,
        l2_bytes=1 << 20,
        features=("neon", "sve", "bf16", "i8mm"),
        dot="bfdot",
        **_ARM,
    ),
    Machine(
        "graviton4",
        cpu="neoverse-v2",
        vector_bits=128,
        is_scalable=True,
        l2_bytes=2 << 20,
        features=("neon", "sve", "sve2", "bf16", "i8mm"),
        dot="bfdot",
        **_ARM,
    ),
    *(
        Machine(
            f"sve{bits}",
            cpu="generic",
            vector_bits=bits,
            is_scalable=True,
            l2_bytes=1 << 20,
            features=("neon", "sve"),
            **_ARM,
        )
        for bits in (128, 256, 512)
    ),
)


def find_machine(name: str) -> Machine:
    """The machine called `name`, or `host`. Raises ValueError listing the names."""
    if name == "host":
        return host_machine()
    if name not in MACHINES:
        raise ValueError(f"there is no target '{name}'; there are: host, {', '.join(MACHINES)}")
    return MACHINES[name]


def host_machine() -> Machine:
    """This processor's row, or the most capable generic one that it can run. Raises ValueError where there is none."""
    arch = platform.machine()
    facts = _host_facts()
    flags = {flag.replace("_", "") for flag in facts.get("flags", facts.get("Features", "")).split()}
    if arch in ("aarch64", "arm64"):
        return MACHINES["graviton3"] if {"sve", "bf16"} <= flags else MACHINES["aarch64"]
    if arch not in ("x86_64", "AMD64"):
        raise ValueError(f"mlc has no CPU target for {arch}; name one with --target")
    is_amd, family = facts.get("vendor_id") == "AuthenticAMD", int(facts.get("cpu family", 0))
    if is_amd and flags >= set(_ZEN4):
        return MACHINES["zen5" if family >= 26 else "zen4"]
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return MACHINES["x86-64-v4"]
    if not flags or {"avx2", "fma"} <= flags:
        return MACHINES["x86-64-v3"]
    raise ValueError("this processor lacks AVX2 and FMA, the least that mlc compiles x86-64 code for")


def _host_facts() -> dict[str, str]:
    """What Linux says of the first processor, empty elsewhere."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return {}
    first = info.read_text().split("\n\n", 1)[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
