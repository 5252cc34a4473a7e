"""Which ops each frontend takes, from the declarations and the importers' rows."""

from __future__ import annotations


def supported() -> dict[str, list[str]]:
    """Sorted names: "mlc" ops, "torch" targets, "onnx" op types."""
    from mlc.dialects.build import load_ops
    from mlc.frontend.aten import load_rows
    from mlc.frontend.onnx_ops import rows

    ops = load_ops()
    onnx = {name if not domain else f"{domain}.{name}" for domain, name in rows()}
    onnx |= {name for definition in ops.values() for name in definition.onnx}
    return {"mlc": sorted(ops), "torch": sorted(load_rows()), "onnx": sorted(onnx)}
