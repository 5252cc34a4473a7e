"""Which ops each frontend takes, from the declarations and the importers' rows."""

from __future__ import annotations


def supported() -> dict[str, list[str]]:
    """Sorted names: "mlc" ops, "torch" targets, "onnx" op types."""
    from mlc.dialects.build import load_ops
    from mlc.frontend.aten import load_rows
    from mlc.frontend.onnx_ops import supported_ops

    return {"mlc": sorted(load_ops()), "torch": sorted(load_rows()), "onnx": sorted(supported_ops())}
