"""The INFO section: a JSON object, of which the keys that no call needs are deflated where that saves something.

A row a kernel, each with its source lines, repeats itself: of 130 KB for a model of 300 kernels 4 stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_PLAIN = ("input_tree", "output_tree")
_PACKED = "packed"
_LEAST_BYTES = 1024


def pack_info(info: Mapping[str, Any]) -> bytes:
    """The section's bytes, the same for the same `info`. Raises: ValueError for numbers that JSON cannot hold."""
    plain = {key: value for key, value in info.items() if key in _PLAIN}
    rest = _dump({key: value for key, value in info.items() if key not in _PLAIN})
    if len(rest) < _LEAST_BYTES:
        return _dump(info)
    import base64
    import zlib

    return _dump({**plain, _PACKED: base64.b64encode(zlib.compress(rest, 9)).decode()})


def unpack_info(section: bytes) -> dict[str, Any]:
    """The inverse of pack_info; zero bytes at the end are padding."""
    info = plain_info(section)
    packed = info.pop(_PACKED, None)
    if packed is not None:
        import base64
        import zlib

        info.update(json.loads(zlib.decompress(base64.b64decode(packed))))
    return info


def plain_info(section: bytes) -> dict[str, Any]:
    """Keys that a call needs, with others perhaps: quick to read."""
    value: dict[str, Any] = json.loads(section.rstrip(b"\0"))
    return value


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
