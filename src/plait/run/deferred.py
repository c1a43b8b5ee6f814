"""Deferred construction: a model is built without its numbers, and any of its tensors can be made afterwards.

`record` runs a constructor with hollow tensors: their memory is reserved but never touched, so it costs nothing.
What the constructor does to them is not done but written on a tape. `Tape.values` then plays the tape for real,
only as far as the wanted tensors are made from it; all other draws of random numbers go to scratch memory, one at
a time, so that the generator moves as it does where the whole model is built. Same seed, same numbers, bit for bit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass

from plait.run.generators import CannotDefer, GeneratorStates, Reseeded

_CPU, _META = torch.device("cpu"), torch.device("meta")
_CHANGES_MEMORY = ("set_", "resize_", "resize_as_")
# What hands out a tensor's memory without an operation the tape could see.
_UNSEEN = {Tensor.numpy, Tensor.__array__, Tensor.storage, Tensor._typed_storage, Tensor.__reduce_ex__}


@dataclass(frozen=True)
class _View:
    """A tensor by the memory it lies in, to be found again once that is real."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Call:
    """An operation. `made` are views of its results, in memory that did not exist before."""

    function: OpOverload[..., Any]
    arguments: Any  # (args, kwargs) with a _View in every tensor's place
    made: tuple[_View, ...]
    written: frozenset[int]
    generator: torch.Generator | None  # that it draws from

    @property
    def read(self) -> frozenset[int]:
        return frozenset(view.storage for view in _views(self.arguments))

    @property
    def changed(self) -> frozenset[int]:
        return self.written | {view.storage for view in self.made}

    @property
    def draws_by_value(self) -> bool:
        """May what it draws depend on numbers in other tensors?"""
        return self.generator is not None and not self.read <= self.written


class Tape:
    """What a constructor did to its tensors, in order."""

    def __init__(self) -> None:
        self.steps: list[_Call | Reseeded] = []
        self._memory: dict[int, torch.UntypedStorage] = {}  # held, so that no two have the same address
        self._made: set[int] = set()
        self._changed: set[int] = set()  # those made, and those from outside that were written into
        self._states = GeneratorStates()

    def holds(self, tensor: Tensor) -> bool:
        """Are this tensor's numbers on the tape? Otherwise it has them itself."""
        return not tensor.is_meta and tensor.untyped_storage()._cdata in self._changed

    def draws(self, tensors: Iterable[Tensor]) -> bool:
        """Are any of these made from random numbers?"""
        chosen = self._chosen({self._view(tensor).storage for tensor in tensors}, draw=False)
        return any(self.steps[index].generator is not None for index in chosen)

    def values(self, tensors: Sequence[Tensor], *, draw: bool = True) -> list[Tensor]:
        """These tensors with their numbers. Without `draw`, no generator moves; right where `draws` says no."""
        with _disable_current_modes(), torch.no_grad():
            wanted = [self._view(tensor) for tensor in tensors]
            chosen = self._chosen({view.storage for view in wanted}, draw=draw)
            given = {storage: memory for storage, memory in self._memory.items() if storage not in self._made}
            player = _Player(given, self._overwritten(chosen))
            last = self._last_use(chosen, {view.storage for view in wanted})
            for index, step in enumerate(self.steps):
                if index in chosen:
                    assert isinstance(step, _Call)
                    player.run(step)
                    player.free(last.get(index, ()))
                elif draw and isinstance(step, _Call) and step.generator is not None:
                    player.draw(step)
                if draw:
                    self._states.follow(index, step.generator, step.state if isinstance(step, Reseeded) else None)
            return [player.tensor(view) for view in wanted]

    def record(self, function: OpOverload[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Puts an operation on the tape and returns its results, hollow."""
        _check_devices((args, kwargs))
        if _returns_numbers(function):
            return self._now(function, args, kwargs)
        written = _written(function, args, kwargs)
        made: Any = ()
        if not written:
            try:
                made = _hollow_results(function, args, kwargs)
            except NotImplementedError:  # the shape of its result depends on numbers
                return self._now(function, args, kwargs)
        elif len(function._schema.returns) > len(written):
            raise CannotDefer(f"{function} writes into a tensor and returns another")
        self._append(function, args, kwargs, pytree.tree_leaves(made), written.values())
        return made if not written else _returned(function, written)

    def evaluated(self, tree: Any) -> Any:
        """The tensors in `tree` with the numbers they have at this point of the tape."""
        wanted = [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor) and self.holds(t)]
        draw = self.draws(wanted)
        with self._states.kept():
            found = {id(t): v for t, v in zip(wanted, self.values(wanted, draw=draw), strict=True)}
        return pytree.tree_map_only(Tensor, lambda t: found.get(id(t), t), tree)

    def finish(self) -> None:
        """Keeps the states the constructor leaves its generators in."""
        self.steps += self._states.set_since(len(self.steps))

    def undo(self) -> None:
        """Leaves no trace in generators the constructor was given."""
        self._states.undo()

    def _now(self, function: OpOverload[..., Any], args: Any, kwargs: Any) -> Any:
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise CannotDefer(f"{function} draws numbers whose count depends on other numbers")
        args, kwargs = self.evaluated((args, kwargs))
        return function(*args, **kwargs)

    def _append(
        self, function: OpOverload[..., Any], args: Any, kwargs: Any, made: Iterable[Tensor], written: Iterable[Any]
    ) -> None:
        generator = None
        if torch.Tag.nondeterministic_seeded in function.tags:
            generator = kwargs.get("generator") or torch.default_generator
            self.steps += self._states.set_since(len(self.steps), generator)
            self._states.advance(generator, len(self.steps))
        call = _Call(
            function,
            pytree.tree_map_only(Tensor, self._view, (args, kwargs)),
            tuple(self._view(tensor) for tensor in made),
            frozenset(self._view(tensor).storage for tensor in pytree.tree_leaves(list(written))),
            generator,
        )
        self.steps.append(call)
        self._made |= {view.storage for view in call.made}
        self._changed |= call.changed

    def _view(self, tensor: Tensor) -> _View:
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            raise CannotDefer(f"a tensor of layout {tensor.layout} or a conjugate view")
        storage = tensor.untyped_storage()
        self._memory.setdefault(storage._cdata, storage)
        size, stride = tuple(tensor.size()), tuple(tensor.stride())
        return _View(storage._cdata, tensor.dtype, size, stride, int(tensor.storage_offset()))

    def _chosen(self, wanted: set[int], *, draw: bool) -> set[int]:
        """The steps that tensors in the `wanted` memory are made by."""
        chosen: set[int] = set()
        for index, step in reversed(list(enumerate(self.steps))):
            if isinstance(step, _Call) and (not wanted.isdisjoint(step.changed) or (draw and step.draws_by_value)):
                chosen.add(index)
                wanted |= step.read
        return chosen

    def _last_use(self, chosen: Iterable[int], kept: set[int]) -> dict[int, list[int]]:
        """Per step, the memory that no later step needs."""
        last: dict[int, int] = {}
        for index in sorted(chosen):
            step = self.steps[index]
            assert isinstance(step, _Call)
            last.update(dict.fromkeys((step.read | step.changed) - kept, index))
        found: dict[int, list[int]] = {}
        for storage, index in last.items():
            found.setdefault(index, []).append(storage)
        return found

    def _overwritten(self, chosen: Iterable[int]) -> set[int]:
        calls = [step for step in map(self.steps.__getitem__, chosen) if isinstance(step, _Call)]
        return {storage for call in calls for storage in call.written}


class _Player:
    """Runs steps with real memory."""

    def __init__(self, given: dict[int, torch.UntypedStorage], overwritten: set[int]) -> None:
        self._given = given
        self._overwritten = overwritten
        self._real: dict[int, torch.UntypedStorage] = {}

    def tensor(self, view: _View) -> Tensor:
        if view.storage not in self._real:  # the constructor had it with its numbers, from outside
            given = self._given[view.storage]
            self._real[view.storage] = given.clone() if view.storage in self._overwritten else given
        return _tensor(view, self._real[view.storage])

    def run(self, call: _Call) -> None:
        args, kwargs = pytree.tree_map_only(_View, self.tensor, call.arguments)
        results = pytree.tree_leaves(call.function(*args, **kwargs))
        for view, result in zip(call.made, results if call.made else (), strict=True):
            if (tuple(result.stride()), result.storage_offset()) != (view.stride, view.offset):
                result = torch.empty_strided(view.size, view.stride, dtype=view.dtype, device=_CPU).copy_(result)
            self._real[view.storage] = result.untyped_storage()

    def draw(self, call: _Call) -> None:
        """Moves the generator as the call would, and forgets what was drawn."""
        args, kwargs = pytree.tree_map_only(_View, _scratch, call.arguments)
        call.function(*args, **kwargs)

    def free(self, storages: Iterable[int]) -> None:
        for storage in storages:
            self._real.pop(storage, None)


class _Recorder(TorchDispatchMode):
    """Sends every operation to the tape, but for those that only look at memory in another way."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_traceable_wrapper_subclass(leaf) for leaf in pytree.tree_leaves((args, kwargs))):
            raise CannotDefer("a tensor subclass with operations of its own")
        if function._opname in _CHANGES_MEMORY:
            raise CannotDefer(f"{function} gives a tensor other memory")
        if function.is_view or torch.Tag.inplace_view in function.tags:
            return function(*args, **(kwargs or {}))
        return self._tape.record(function, args, kwargs or {})


class _DirectReads(TorchFunctionMode):
    """Catches what reads a tensor's memory without an operation."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _UNSEEN:
            raise CannotDefer(f"Tensor.{function.__name__} reads memory directly")
        if function is Tensor.tolist:
            return self._tape.evaluated(args[0]).tolist()
        if function is Tensor.__deepcopy__:
            return _copied(*args)
        return function(*args, **(kwargs or {}))


def record(build: Callable[[], nn.Module]) -> tuple[nn.Module, Tape]:
    """Runs `build`; returns the model with hollow tensors and the tape that fills them."""
    tape = Tape()
    try:
        with _DirectReads(tape), _Recorder(tape):
            module = build()
    except BaseException:
        tape.undo()
        raise
    tape.finish()
    return module, tape


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


def _views(arguments: Any) -> Iterator[_View]:
    return (leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, _View))


def _tensor(view: _View, storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=view.dtype, device=_CPU).set_(storage, view.offset, view.size, view.stride)


def _scratch(view: _View) -> Tensor:
    return torch.empty_strided(view.size, view.stride, dtype=view.dtype, device=_CPU)


def _check_devices(arguments: Any) -> None:
    for leaf in pytree.tree_leaves(arguments):
        device = leaf.device if isinstance(leaf, Tensor) else leaf
        if isinstance(device, torch.device) and device != _CPU:
            raise CannotDefer(f"tensors on device {device}")


def _returns_numbers(function: OpOverload[..., Any]) -> bool:
    return any("Tensor" not in str(returned.type) for returned in function._schema.returns)


def _written(function: OpOverload[..., Any], args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments an operation writes into, by the letter its schema gives their memory."""
    found = {}
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            (letter,) = argument.alias_info.before_set
            found[letter] = args[index] if index < len(args) else kwargs[argument.name]
    return found


def _returned(function: OpOverload[..., Any], written: dict[str, Any]) -> Any:
    results = []
    for returned in function._schema.returns:
        if returned.alias_info is None:
            raise CannotDefer(f"{function} writes into a tensor and returns another")
        (letter,) = returned.alias_info.before_set
        results.append(written[letter])
    return results[0] if len(results) == 1 else tuple(results) or None


def _hollow_results(function: OpOverload[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """What the operation would return, with memory that is reserved and not touched."""
    if any(argument.name == "device" for argument in function._schema.arguments):
        kwargs = {**kwargs, "device": _META}
    args, kwargs = pytree.tree_map_only(Tensor, _on_meta, (args, kwargs))
    return pytree.tree_map_only(Tensor, _hollow, function(*args, **kwargs))


def _on_meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)


def _hollow(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_CPU)
