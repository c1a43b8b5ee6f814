"""Modules the capture cannot look into: each call of one becomes a node that runs the module itself.

What is needed to treat a module as a black box is seen by running the model on the example at two numbers of rows:
what goes out, which sizes grow with the rows, which buffers are written, whether rows depend on one another. While
capturing, a call of the module is a call of the operator `plait::opaque`, which only knows shapes; in the finished
graph it is `call_opaque(call, tensors, inputs)`, where `tensors` are the module's parameters and buffers: they belong
to the stage as any others do, and gradients flow through whatever autograd does inside.
"""

import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch._ops import HigherOrderOperator

from plait.graph.capture.observe import Growth, Observed
from plait.graph.errors import CaptureError
from plait.graph.randomness import called

_LIBRARY = torch.library.Library("plait", "FRAGMENT")
_LIBRARY.define("opaque(int number, Tensor[] tensors, Tensor[] inputs) -> Tensor[]")
_OPERATOR = torch.ops.plait.opaque.default
_TENSOR = object()  # stands for a tensor among a call's arguments
_calls: list["OpaqueCall"] = []  # those of the capture in progress, whose shapes the operator is asked for


def _shapes(number: int, _: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    return [growth.empty(inputs) for growth in _calls[number].outputs]


torch.library.register_fake("plait::opaque", _shapes, lib=_LIBRARY)


@dataclass
class OpaqueCall:
    """One call of one module. The module is run with the tensors it is given, not with its own."""

    name: str
    module: nn.Module
    tensor_names: tuple[str, ...]  # parameters and buffers
    written: frozenset[str]  # those of them that it overwrites
    why: str
    rows_apart: bool
    outputs: tuple[Growth, ...]
    arguments: pytree.TreeSpec
    leaves: list[Any]
    lock: threading.Lock = field(default_factory=threading.Lock)  # tensors are lent to the module while it runs

    def __deepcopy__(self, _: dict[int, Any]) -> "OpaqueCall":
        return self

    def run(self, tensors: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        given = iter(inputs)
        leaves = [next(given) if leaf is _TENSOR else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.arguments)
        _seed_python()
        with self.lock:
            result = torch.func.functional_call(
                self.module, dict(zip(self.tensor_names, tensors, strict=True)), args, kwargs
            )
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


class _CallOpaque(HigherOrderOperator):
    """Runs the module of a call; a higher-order operator for the reason `regions.choose` is one."""

    def __init__(self) -> None:
        super().__init__("plait_call_opaque")

    def __call__(self, call: OpaqueCall, tensors: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        return call.run(tensors, inputs)


call_opaque = _CallOpaque()


def _seed_python() -> None:
    """A module may draw from Python's or NumPy's generator: they follow PyTorch's, which the stage has seeded."""
    seed = torch.initial_seed() % (1 << 32)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def opaque_call_of(node: fx.Node) -> OpaqueCall | None:
    """The call a node of the finished graph makes, where it is one of an opaque module."""
    target, args = called(node)
    if target is not call_opaque:
        return None
    call = getattr(node.graph.owning_module, str(args[0].target))
    assert isinstance(call, OpaqueCall)
    return call


@contextmanager
def in_one_piece(model: nn.Module, seen: Mapping[str, Observed]) -> Iterator[None]:
    """While active, a call of a module in `seen` is one node."""
    _calls.clear()
    modules = dict(model.named_modules())
    try:
        for path, observed in seen.items():
            modules[path].forward = _Stub(path, modules[path], observed)
        yield
    finally:
        for path in seen:
            modules[path].__dict__.pop("forward", None)


class _Stub:
    """Stands for a module's forward while the model is captured."""

    def __init__(self, path: str, module: nn.Module, observed: Observed) -> None:
        self.path, self.module, self.observed = path, module, observed
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, arguments = pytree.tree_flatten((args, kwargs))
        if any(isinstance(leaf, torch.SymInt) for leaf in leaves):
            raise CaptureError(
                f"module {self.path} stays in one piece ({self.observed.why}), but is called with a size of the batch. "
                "Let it take the size from its input's shape."
            )
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        seen = self.observed.calls[min(self.calls, len(self.observed.calls) - 1)]
        call = OpaqueCall(
            name=f"opaque_{self.path.replace('.', '_')}_{self.calls}",
            module=self.observed.structure,
            tensor_names=tuple(named),
            written=self.observed.written,
            why=self.observed.why,
            rows_apart=self.observed.rows_apart,
            outputs=seen.outputs,
            arguments=arguments,
            leaves=[_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves],
        )
        self.calls += 1
        _calls.append(call)
        results = iter(torch.ops.plait.opaque(len(_calls) - 1, list(named.values()), tensors))
        made = [next(results) if leaf is None else leaf for leaf in seen.constants]
        return pytree.tree_unflatten(made, seen.structure)


def write_calls(module: fx.GraphModule) -> None:
    """The operator's place is taken by the calls themselves."""
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=_OPERATOR):
        number, tensors, inputs = node.args
        call = _calls[number]
        setattr(module, call.name, call)
        with graph.inserting_before(node):
            handle = graph.create_node("get_attr", call.name)
        node.target, node.args = call_opaque, (handle, tensors, inputs)
