"""What is in an artifact, for people and machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlc import artifact as container


def summary(path: Path) -> dict[str, Any]:
    """Everything that `mlc inspect` says, as JSON values. Raises FormatError for what is no artifact."""
    if not path.is_file():
        raise container.FormatError(f"there is no file {path}")
    found = container.read_artifact(path)
    targets = []
    for index, target in enumerate(found.targets):
        code = [row.size for row in found.sections if row.kind == container.CODE and row.target_index == index]
        weights = found.section(container.WEIGHTS, index)
        targets.append({
            "name": target.name, "arch": target.arch, "features": list(target.features), "sve_bits": target.sve_bits,
            "code_bytes": sum(code), "weights_bytes": 0 if weights is None else weights.nbytes,
            "arena_bytes": target.arena_bytes,
        })
    whole = {"file_bytes": found.data.nbytes, "targets": targets}
    if not found.methods:
        return {**whole, **_method(found.meta, found.info)}
    infos = found.info.get("methods", {})
    return {**whole, "methods": {name: _method(meta, infos.get(name, {})) for name, meta in found.methods.items()}}


def _method(meta: container.Meta, info: dict[str, Any]) -> dict[str, Any]:
    def tensors(rows: tuple[container.TensorInfo, ...]) -> list[dict[str, Any]]:
        return [{"name": r.name, "dtype": r.dtype, "dims": ["?" if d is None else d for d in r.dims]} for r in rows]

    return {
        "inputs": tensors(meta.inputs), "outputs": tensors(meta.outputs), "states": tensors(meta.states),
        "symbols": {s.name: [s.min, s.max] for s in meta.symbols},
        "kernels": info.get("kernels", []), "arena": info.get("arena", {}),
    }


def text(summary: dict[str, Any]) -> str:
    """The summary on a screen."""
    lines = [f"{summary['file_bytes']:,} bytes"]
    methods = summary.get("methods", {"": summary})
    for name, method in methods.items():
        lines += [*([f"method  {name}"] if name else []), *_signature(method)]
    for target in summary["targets"]:
        arena = "by shape" if target["arena_bytes"] is None else f"{target['arena_bytes']:,}"
        machine = f"{target['name']} ({target['arch']} {' '.join(target['features'])})"
        sizes = f"code {target['code_bytes']:,}, weights {target['weights_bytes']:,}, arena {arena} bytes"
        lines.append(f"target  {machine}: {sizes}")
    for name, method in methods.items():
        lines += [*([f"method  {name}"] if name else []), *_work(method)]
    return "\n".join(lines)


def _signature(method: dict[str, Any]) -> list[str]:
    lines = []
    for kind in ("inputs", "outputs", "states"):
        for row in method[kind]:
            lines.append(f"{kind[:-1]:<7} {row['name']}: {row['dtype']}[{', '.join(map(str, row['dims']))}]")
    return [*lines, *(f"symbol  {name}: {low}..{high}" for name, (low, high) in method["symbols"].items())]


def _work(method: dict[str, Any]) -> list[str]:
    lines, arena = [], method["arena"]
    if arena:
        where = arena["at"] or "all sizes"
        lines.append(f"arena   {arena['bytes']:,} bytes, lower bound {arena['peak_live_bytes']:,} at {where}")
    lines.append(f"kernels {len(method['kernels'])} launches")
    return [*lines, *(f"  {kernel['name']}" for kernel in method["kernels"])]
