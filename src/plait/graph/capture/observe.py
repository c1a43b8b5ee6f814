"""What a module does, seen from outside while the model runs on an example."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from plait.graph.errors import CaptureError

_ROWS = (2, 3)
_ATTEMPTS = 8  # a model with LayerDrop does not call every module in every run


@dataclass(frozen=True)
class Growth:
    """A tensor's size: per dimension a number, or the input's dimension it grows with (`times` over `parts`)."""

    sizes: tuple["int | Along", ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self, inputs: Sequence[Tensor]) -> Tensor:
        sizes = [size if isinstance(size, int) else size.of(inputs) for size in self.sizes]
        return torch.empty(sizes, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class Along:
    """Grows with dimension `dim` of input `index`."""

    index: int
    dim: int
    times: int
    parts: int

    def of(self, inputs: Sequence[Tensor]) -> int:
        return inputs[self.index].shape[self.dim] * self.times // self.parts


@dataclass(frozen=True)
class SeenCall:
    """The result of one call: its structure, what in it is no tensor (None for tensors), and the tensors' sizes."""

    structure: pytree.TreeSpec
    constants: tuple[Any, ...]
    outputs: tuple[Growth, ...]


@dataclass(frozen=True)
class Observed:
    """One module."""

    why: str
    structure: nn.Module  # a copy with nothing in its parameters and buffers
    written: frozenset[str]
    rows_apart: bool  # is every row of its result computed from that row of its inputs alone?
    calls: tuple[SeenCall, ...]


@dataclass(frozen=True)
class _Call:
    leaves: list[Any]
    arguments: pytree.TreeSpec
    result: Any

    @property
    def inputs(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class Reason:
    """Why a module is not captured. A branch on data may look at all rows at once; a backward of one's own does not."""

    why: str
    branches: bool


def observe(
    model: nn.Module, run: Callable[[Any], Any], batch_of: Callable[[int], Any], reasons: Mapping[str, Reason]
) -> dict[str, Observed]:
    """Runs the model with two and with three rows, and looks at the modules in `reasons`."""
    modules = {path: module for path, module in model.named_modules() if path in reasons}
    with _unchanged(model), torch.random.fork_rng(devices=[]), torch.no_grad():
        few, many = (_calls_at(modules, run, batch_of(rows)) for rows in _ROWS)
        found = {}
        for path, module in modules.items():
            if len(few[path].calls) != len(many[path].calls) or not few[path].calls:
                raise CaptureError(
                    f"module {path} stays in one piece ({reasons[path].why}), but how often it is called differs from "
                    "run to run. Move what decides that into the module."
                )
            pairs = list(zip(few[path].calls, many[path].calls, strict=True))
            found[path] = Observed(
                why=reasons[path].why,
                structure=_structure(module),
                written=few[path].written | many[path].written,
                rows_apart=not reasons[path].branches and all(_rows_apart(module, *pair) for pair in pairs),
                calls=tuple(_seen(path, *pair) for pair in pairs),
            )
    return found


class _Watch:
    """The calls of one module in one run."""

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path, self.module = path, module
        self.calls: list[_Call] = []
        self.written: frozenset[str] = frozenset()

    def before(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self.given = {n: t._version for n, t in self.module.named_buffers()}
        self.versions = [t._version for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]

    def after(self, _: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        leaves, arguments = pytree.tree_flatten((args, kwargs))
        call = _Call(leaves, arguments, result)
        if [t._version for t in call.inputs] != self.versions:
            raise CaptureError(
                f"module {self.path} cannot be captured and overwrites its input in place, so it cannot stay in one "
                "piece either. Let it work on a copy (`x = x.clone()`)."
            )
        self.calls.append(call)
        buffers = dict(self.module.named_buffers())
        self.written |= {name for name, version in self.given.items() if buffers[name]._version != version}


def _calls_at(modules: Mapping[str, nn.Module], run: Callable[[Any], Any], batch: Any) -> dict[str, _Watch]:
    for seed in range(_ATTEMPTS):
        torch.manual_seed(seed)
        watches = {path: _Watch(path, module) for path, module in modules.items()}
        handles = []
        for path, module in modules.items():
            handles.append(module.register_forward_pre_hook(watches[path].before, with_kwargs=True))
            handles.append(module.register_forward_hook(watches[path].after, with_kwargs=True))
        try:
            run(batch)
        finally:
            for handle in handles:
                handle.remove()
        if all(watch.calls for watch in watches.values()):
            break
    return watches


def _seen(path: str, few: _Call, many: _Call) -> SeenCall:
    leaves, structure = pytree.tree_flatten(few.result)
    others, same = pytree.tree_flatten(many.result)
    if structure != same:
        raise CaptureError(f"module {path} stays in one piece, but what it returns depends on the number of rows.")
    pairs = [(a, b) for a, b in zip(leaves, others, strict=True) if isinstance(a, Tensor)]
    outputs = tuple(
        Growth(tuple(_size(path, few, many, *sizes) for sizes in zip(a.shape, b.shape, strict=True)), a.dtype, a.device)
        for a, b in pairs
    )
    return SeenCall(structure, tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves), outputs)


def _size(path: str, few: _Call, many: _Call, low: int, high: int) -> int | Along:
    if low == high:
        return low
    for index, (a, b) in enumerate(zip(few.inputs, many.inputs, strict=True)):
        for dim, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)):
            if x != y and low * y == high * x:
                return Along(index, dim, high - low, y - x)
    raise CaptureError(
        f"module {path} stays in one piece, but the size of its result is not proportional to the number of rows "
        f"({low} for {_ROWS[0]}, {high} for {_ROWS[1]}). Let it return a tensor with a row per sample."
    )


def _rows_apart(module: nn.Module, few: _Call, many: _Call) -> bool:
    """Does one row alone give what it gives among others? Only a sample: it says yes to what looks independent."""
    parts = {}
    for index, (a, b) in enumerate(zip(few.leaves, many.leaves, strict=True)):
        if isinstance(a, Tensor):
            if a.device.type == "meta":
                return False  # no values, so nothing is known
            parts[index] = _first_row(a, b)
    leaves = [parts.get(index, leaf) for index, leaf in enumerate(many.leaves)]
    args, kwargs = pytree.tree_unflatten(leaves, many.arguments)
    try:
        alone = pytree.tree_leaves(module(*args, **kwargs))
    except Exception:  # noqa: BLE001 - a module that cannot take one row mixes them
        return False
    results = zip(alone, pytree.tree_leaves(few.result), pytree.tree_leaves(many.result), strict=True)
    return all(
        torch.allclose(one, _first_row(a, b), rtol=1e-4, atol=1e-6, equal_nan=True)
        for one, a, b in results
        if isinstance(one, Tensor)
    )


def _first_row(few: Tensor, many: Tensor) -> Tensor:
    """The part of `many` that belongs to one row, along the dimension that grew."""
    for dim, (a, b) in enumerate(zip(few.shape, many.shape, strict=True)):
        if a != b:
            return many.narrow(dim, 0, b - a)
    return many


def _structure(module: nn.Module) -> nn.Module:
    """A copy without the weights: a stage runs it with its own."""
    held = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(t): _empty(t) for t in held})


def _empty(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Looking at a model must not move its statistics."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
