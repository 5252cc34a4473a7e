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

    def tensors(rows: tuple[container.TensorInfo, ...]) -> list[dict[str, Any]]:
        return [{"name": r.name, "dtype": r.dtype, "dims": ["?" if d is None else d for d in r.dims]} for r in rows]

    targets = []
    for index, target in enumerate(found.targets):
        code = found.section(container.CODE, index)
        weights = found.section(container.WEIGHTS, index)
        targets.append({
            "name": target.name, "arch": target.arch, "features": list(target.features), "sve_bits": target.sve_bits,
            "code_bytes": 0 if code is None else code.nbytes, "weights_bytes": 0 if weights is None else weights.nbytes,
            "arena_bytes": target.arena_bytes,
        })
    return {
        "file_bytes": found.data.nbytes, "inputs": tensors(found.meta.inputs), "outputs": tensors(found.meta.outputs),
        "states": tensors(found.meta.states),
        "symbols": {s.name: [s.min, s.max] for s in found.meta.symbols}, "targets": targets,
        "kernels": found.info.get("kernels", []), "arena": found.info.get("arena", {}),
    }


def text(summary: dict[str, Any]) -> str:
    """The summary on a screen."""
    lines = [f"{summary['file_bytes']:,} bytes"]
    for kind in ("inputs", "outputs", "states"):
        for row in summary[kind]:
            lines.append(f"{kind[:-1]:<7} {row['name']}: {row['dtype']}[{', '.join(map(str, row['dims']))}]")
    for name, (low, high) in summary["symbols"].items():
        lines.append(f"symbol  {name}: {low}..{high}")
    for target in summary["targets"]:
        arena = "by shape" if target["arena_bytes"] is None else f"{target['arena_bytes']:,}"
        machine = f"{target['name']} ({target['arch']} {' '.join(target['features'])})"
        sizes = f"code {target['code_bytes']:,}, weights {target['weights_bytes']:,}, arena {arena} bytes"
        lines.append(f"target  {machine}: {sizes}")
    arena = summary["arena"]
    if arena:
        where = arena["at"] or "all sizes"
        lines.append(f"arena   {arena['bytes']:,} bytes, lower bound {arena['peak_live_bytes']:,} at {where}")
    lines.append(f"kernels {len(summary['kernels'])} launches")
    lines.extend(f"  {k['name']}" for k in summary["kernels"])
    return "\n".join(lines)
