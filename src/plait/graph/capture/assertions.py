"""What the capture checks while it runs: of no use once the graph is cut, and in the way of comparing paths."""

import torch
from torch import fx

from plait.graph.regions import regions_of

_ASSERTIONS = {
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten.sym_constrain_range_for_size.default,
    torch.ops.aten.sym_constrain_range.default,
}


def drop_assertions(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and node.target in _ASSERTIONS and not node.users:
            graph.erase_node(node)
            continue
        for inner, _ in regions_of(node):
            drop_assertions(inner)
            assert inner.owning_module is not None
            inner.owning_module.recompile()
