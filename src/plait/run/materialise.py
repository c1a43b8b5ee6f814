"""Materialise: the tensors of this rank's stages get their numbers, and no others do.

They come from the model's own construction (`deferred`), from a file (`weights`), or were there from the start.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from plait.errors import PlaitError
from plait.graph import Model
from plait.graph.build import parameter_name
from plait.run.deferred import Tape, record
from plait.run.weights import Wanted, Weights, find_weights

ModelSource = nn.Module | Callable[[], nn.Module]
_NOTHING = Weights({})
_CONSTANT_PREFIX = "model."  # what a captured constant has before the name its author gave it


@dataclass(frozen=True)
class Construction:
    """A model ready to be captured; `tape` or a file has the numbers it lacks."""

    module: nn.Module
    tape: Tape | None = None
    lost: frozenset[str] = frozenset()  # tensors that were on `meta`, where numbers cannot be


@dataclass(frozen=True)
class Origin:
    """Where this rank's tensors get their numbers from."""

    weights: Weights = _NOTHING
    tape: Tape | None = None
    draw: bool = True

    def fill(self, modules: Iterable[nn.Module], others: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Puts real tensors into the stages' modules, one for each name; returns the `others`, real too."""
        modules = list(modules)
        held = {**others, **{name: tensor for module in modules for name, tensor in _named_tensors(module)}}
        values = {n: self.weights.read(n, t) for n, t in held.items() if n in self.weights.entries}
        if self.tape is not None:
            rest = {n: t for n, t in held.items() if n not in values and self.tape.holds(t)}
            values |= dict(zip(rest, self.tape.values(list(rest.values()), draw=self.draw), strict=True))
        made = {name: _like(held[name], value) for name, value in values.items()}
        for module in modules:
            for name, _ in list(_named_tensors(module)):
                if name in made:
                    _put(module, name, made[name])
        return {name: made.get(name, tensor).detach() for name, tensor in others.items()}


def construct(model: ModelSource) -> Construction:
    """Builds a model without its numbers where that is possible: where a function that builds it was given."""
    if isinstance(model, nn.Module):
        return _from_meta(model) if _on_meta(model) else Construction(model)
    state = torch.get_rng_state()
    try:
        return Construction(*record(model))
    except Exception as error:  # noqa: BLE001 - if the constructor itself is wrong, it fails again below
        torch.set_rng_state(state)
        whole = model()
        if not _on_meta(whole):
            reason = " ".join([f"{type(error).__name__}:", *str(error).strip().splitlines()[:1]])
            warnings.warn(
                "the model was built whole, with all its weights on every rank, because its constructor cannot be "
                f"deferred ({reason}).",
                stacklevel=3,
            )
        return construct(whole)


def origin_of(construction: Construction, model: Model, path: Path | str | None) -> Origin:
    """Where the captured model's numbers come from; PlaitError where some come from nowhere."""
    weights = _NOTHING if path is None else find_weights(path, wanted_tensors(model))
    tensors = captured_tensors(model)
    lost = [n for n, t in tensors.items() if (n in construction.lost or t.is_meta) and n not in weights.entries]
    if lost:
        raise PlaitError(_lost_message(lost, len(tensors), with_file=path is not None))
    tape = construction.tape
    draw = tape is not None and (
        path is None or tape.draws(t for n, t in tensors.items() if n not in weights.entries and tape.holds(t))
    )
    return Origin(weights, tape, draw)


def load_weights(model: Model, path: Path | str) -> Weights:
    """Fills a captured model that has all its tensors."""
    weights = find_weights(path, wanted_tensors(model))
    tensors = captured_tensors(model)
    with torch.no_grad():
        for name in weights.entries:
            tensors[name].copy_(weights.read(name, tensors[name]))
    return weights


def captured_tensors(model: Model) -> dict[str, Tensor]:
    """Parameters, buffers and constants of a captured model, each by its first name."""
    module, names = model.captured.module, model.captured.parameter_names
    found = {names.get(name, name): tensor for name, tensor in _named_tensors(module)}
    for node in module.graph.find_nodes(op="get_attr"):
        value = _attribute(module, str(node.target))
        if isinstance(value, Tensor):
            found.setdefault(parameter_name(model.captured, node), value)
    return found


def wanted_tensors(model: Model) -> list[Wanted]:
    """What a file must hold: what the model's state_dict holds and the loss depends on; and may: the rest of it."""
    names = model.captured.parameter_names
    saved = {names[name] for name in model.captured.module.state_dict() if name in names}
    aliases: dict[str, list[str]] = {}
    for alias, first in names.items():
        aliases.setdefault(first, []).append(alias.removeprefix("model."))
    tensors = captured_tensors(model)
    return [
        Wanted(tuple(dict.fromkeys([first, *others])), tensors[first], first not in model.unused)
        for first, others in aliases.items()
        if first in saved and first in tensors
    ]


def _lost_message(lost: list[str], total: int, *, with_file: bool) -> str:
    name = lost[0].removeprefix(_CONSTANT_PREFIX)
    return (
        f"{name} is on the meta device and has no numbers ({len(lost)} of {total} tensors)"
        + (", and the weights do not hold it. Pass" if with_file else ". Give weights=FILE, or pass")
        + " a function that builds the model on the CPU, as in parallelize(lambda: Model(), …): each rank then makes "
        "its own part alone."
    )


def _on_meta(module: nn.Module) -> bool:
    return any(tensor.is_meta for _, tensor in _named_tensors(module))


def _from_meta(module: nn.Module) -> Construction:
    """A copy whose tensors are on the CPU, so that it is captured for there, in memory that is never touched."""
    module = copy.deepcopy(module)
    lost: set[str] = set()
    made: dict[int, Tensor] = {}
    for path, part in module.named_modules():
        start = f"{path}." if path else ""
        for tensors, prefix in ((part._parameters, ""), (part._buffers, ""), (vars(part), _CONSTANT_PREFIX)):
            for name, tensor in tensors.items():
                if isinstance(tensor, Tensor) and tensor.is_meta:
                    hollow = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
                    tensors[name] = made.setdefault(id(tensor), _like(tensor, hollow))
                    lost.add(f"{prefix}{start}{name}")
    return Construction(module, lost=frozenset(lost))


def _like(tensor: Tensor, value: Tensor) -> Tensor:
    return nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _attribute(module: nn.Module, target: str) -> object:
    holder: object = module
    for part in target.split("."):
        holder = getattr(holder, part, None)  # the randomness is each stage's own
    return holder


def _put(module: nn.Module, path: str, tensor: Tensor) -> None:
    folder, _, name = path.rpartition(".")
    setattr(module.get_submodule(folder), name, tensor)
