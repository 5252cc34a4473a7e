"""Loops that run as loops, for both importers: states, a condition, a body (dialects/loop.py says how they lie)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def while_loop(
    g: Any, initial: Sequence[Any], condition: Callable[[list[Any]], Any], body: Callable[[list[Any]], Sequence[Any]]
) -> list[Any]:
    """The states after the loop. `condition(states)` gives a bool of one element, `body(states)` the next states.

    Raises: OpError where a state changes its dtype or shape, or a size is read from data in the loop.
    """
    loop = g.loop_count
    g.loop_count, g.open_loops = loop + 1, g.open_loops + 1
    states = [g.op("loop_begin", x, loop=loop, state=i) for i, x in enumerate(initial)]
    go = condition(states)
    g.op("loop_test", g.op("reshape", go, shape=[]) if go.shape else go, loop=loop)
    # Copies first, since a next state may be another state or a view of it.
    following = [g.op("loop_next", x, loop=loop, state=i) for i, x in enumerate(body(states))]
    pairs = zip(states, following, strict=True)
    results = [g.op("loop_end", held, x, loop=loop, state=i) for i, (held, x) in enumerate(pairs)]
    g.open_loops -= 1
    return results
