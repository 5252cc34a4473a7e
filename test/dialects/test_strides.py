"""Where a kernel writes when its result is seen through views."""

from __future__ import annotations

import pytest
from mlc.dialects.views import strides_before
from mlc.frontend.graph import GraphBuilder


@pytest.mark.parametrize("shapes", [((37, 3), (3, 1), [37]), ((1, 3), (3, 1), []), ((4, 1, 3), (4, 3, 1), [4])])
def test_a_column_that_a_reshape_drops_keeps_a_stride(shapes):
    """Lanes are written along it under a mask: with stride 0 a whole register went to every element, past the end."""
    left, right, final = shapes
    graph = GraphBuilder({})
    a, b = graph.declare_inputs([("a", "f32", left), ("b", "f32", right)])
    product = graph.matmul(a, b)
    last = graph.reshape(product, shape=final)
    module = graph.finish([("y", last)])
    with module.context:
        found = strides_before(product.ir, last.ir)
    assert found is not None and 0 not in found.strides
