"""Sources of a model that is linked into a program (`mlc compile --emit static`): no file, no loader, no checksums.

`write_static` gives model.s (description and code as constants), model.h (their names) and the weights blob; assemble
model.s with any assembler of the target. The program calls `NAME_model(weights)` and mlc_model_view_static.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from mlc.artifact import Chunk, FormatError, Meta, Target, chunk_parts, pack_meta, pack_target

# What a flat image needs of its address: aarch64 forms addresses by 4096-byte pages (adrp).
_CODE_ALIGN_BITS = {"aarch64": 12}
_CODE_ALIGN_BITS_OTHERWISE = 6


def write_static(
    folder: str | os.PathLike[str], name: str, meta: Meta, target: Target, weights: Sequence[Chunk] = (),
    state: Sequence[Chunk] = (),
) -> tuple[Path, Path, Path]:
    """Writes NAME.s, NAME.h and NAME.weights into the folder; returns their paths.

    `weights`: those of an artifact that all targets share; the target's own win. `state`: what states begin as where
    that is not zeros. Raises: FormatError.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise FormatError(f"{name!r} is not a C name")
    stem = Path(folder) / name
    paths = (stem.with_suffix(".s"), stem.with_suffix(".h"), stem.with_suffix(".weights"))
    begun = b"".join(map(bytes, chunk_parts(state)))
    paths[0].write_text(_assembly(name, meta, target, begun))
    size_bytes = 0
    with open(paths[2], "wb") as file:
        for part in chunk_parts(target.weights if target.weights else weights):
            size_bytes += file.write(part)
    paths[1].write_text(_header(name, len(pack_meta(meta)), size_bytes, len(begun)))
    return paths


def _assembly(name: str, meta: Meta, target: Target, state: bytes) -> str:
    if not isinstance(target.code, bytes):
        raise FormatError("a model that is linked in has one method")
    code_align_bits = _CODE_ALIGN_BITS.get(target.info.arch, _CODE_ALIGN_BITS_OTHERWISE)
    read_only = f'.section .rodata.{name},"a",%progbits'
    # The image holds its own constants; it lies where code lies, so that it may be executed.
    executable = f'.section .text.{name},"ax",%progbits'
    blobs = [
        (f"{name}_meta", read_only, 3, pack_meta(meta)),
        (f"{name}_target", read_only, 3, pack_target(target.info)),
        (f"{name}_code", executable, code_align_bits, target.code),
        *([(f"{name}_state", read_only, 3, state)] if state else []),
    ]
    lines = [f"// The model {name}, made by mlc. See {name}.h."]
    for symbol, section, align_bits, blob in blobs:
        lines += [section, f".p2align {align_bits}", f".globl {symbol}", f".type {symbol}, %object"]
        lines += [f".size {symbol}, {len(blob)}", f"{symbol}:"]
        lines += [".byte " + ",".join(map(str, blob[at : at + 32])) for at in range(0, len(blob), 32)]
    lines.append('.section .note.GNU-stack,"",%progbits')
    return "\n".join(lines) + "\n"


def _header(name: str, meta_bytes: int, weights_bytes: int, state_bytes: int) -> str:
    guard = f"{name.upper()}_MODEL_H"
    weights_words = f"{weights_bytes} bytes of {name}.weights, at an address that is a multiple of 64"
    return f"""/* {name}.h - the model {name}, linked into the program. Made by mlc; goes with {name}.s. */
#ifndef {guard}
#define {guard}

#include "mlc_rt.h"

#define {name.upper()}_WEIGHTS_BYTES UINT64_C({weights_bytes})

#ifdef __cplusplus
extern "C" {{
#endif

extern const uint64_t {name}_meta[], {name}_target[]{f", {name}_state[]" if state_bytes else ""};
extern const mlc_code_v1 {name}_code;

/* For mlc_model_view_static. `weights`: {weights_words if weights_bytes else "null, the model has none"}. */
static inline mlc_static_model {name}_model(const void *weights) {{
  mlc_static_model model;
  model.struct_size = sizeof model;
  model.meta_bytes = {meta_bytes};
  model.meta = {name}_meta;
  model.target = {name}_target;
  model.code = &{name}_code;
  model.weights = weights;
  model.weights_bytes = {name.upper()}_WEIGHTS_BYTES;
  model.state = {f"{name}_state" if state_bytes else "0"};
  model.state_bytes = {state_bytes};
  return model;
}}

#ifdef __cplusplus
}}
#endif

#endif
"""
