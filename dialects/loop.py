"""Loops whose trip count data decide, flat in `@forward`: markers between which the body's ops stand.

    s = loop_begin(init, loop=0, state=0)        one for each state, next to each other
    ...                                          what the condition is computed from
    loop_test(go, loop=0)                        false: on behind the last loop_end
    ...                                          the body
    t = loop_next(next), ...                     all of them before the first loop_end: a state may be another's next
    r = loop_end(s, t, loop=0, state=0), ...     one for each state; the last goes back behind the loop_begins

Values pass from iteration to iteration and out of the loop through states alone, which lie in one place of memory: a
`loop_end` writes to where its `loop_begin` did, and its result is read behind the loop, also where nothing ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .op import op
from .types import TensorType


@op("gather")
def loop_begin(x: T[*S], *, loop: int, state: int) -> T[*S]:
    """State number `state` of loop number `loop`, which starts as `x`. Source: torch while_loop; ONNX Loop-25."""
    return np.asarray(x)


@op("special")
def loop_test(go: bool[*S], *, loop: int) -> bool[*S]:
    """Leaves the loop where `go` is false. Source: torch while_loop; ONNX Loop-25."""
    return go


@op("gather")
def loop_next(x: T[*S], *, loop: int, state: int) -> T[*S]:
    """What state `state` is to become, kept until every state's is known. Source: torch while_loop."""
    return np.asarray(x)


@op("gather")
def loop_end(held: T[*S], x: T[*S], *, loop: int, state: int) -> T[*S]:
    """Writes `x` over `held` and, after the last one of the loop, goes on at its start; its result is the last state.

    Source: torch while_loop; ONNX Loop-25.
    """
    return np.asarray(x)


@loop_test.rule("infer")
def _(go: TensorType, *, loop: int) -> TensorType:
    if go.shape:
        raise ValueError(f"the condition of a loop is one bool, not {go}")
    return go


@loop_end.rule("infer")
def _(held: TensorType, x: TensorType, *, loop: int, state: int) -> TensorType:
    if held != x:
        raise ValueError(f"state {state} of a loop is {held} before an iteration and {x} after it; it must stay")
    return held


for _copy in (loop_begin, loop_next):
    _copy.rule("at")(lambda k, index, x, **_: k.read(x, index))
loop_end.rule("at")(lambda k, index, _held, x, **_: k.read(x, index))
loop_test.rule("tiles")(lambda *_types, **_: 1)


@loop_test.rule("kernel")
def _(k: Any, tile: Any, ins: Sequence[Any], outs: Sequence[Any], *, loop: int) -> None:
    k.write(outs[0], [], k.read(ins[0], []))
