"""Tensor groups at run time: how a rank meets the others of its group, and whole tensors of which it has parts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from plait.errors import PlaitError
from plait.graph import Graph, Model
from plait.graph.sharding.collectives import TensorGroup, gather, take_part
from plait.graph.sharding.layout import Split
from plait.graph.sharding.propagate import Stretch, propagate
from plait.graph.stage import StageCode
from plait.plan import Plan
from plait.program import Program, StageTable
from plait.run.transport import Transport

Ranks = tuple[int, ...]
PURPOSE = "tensor"  # of the process groups


class TensorExchange:
    """A rank's tensor group as the nodes of its stages' code see it."""

    def __init__(self, transport: Transport, ranks: Sequence[int]) -> None:
        self._transport = transport
        self._ranks = tuple(ranks)
        self.index = self._ranks.index(transport.rank)
        self.degree = len(self._ranks)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return self._transport.all_gather(tensor, self._ranks, PURPOSE)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        result = tensor.clone(memory_format=torch.contiguous_format)
        self._transport.all_reduce(result, self._ranks, PURPOSE).wait()
        return result


@dataclass(frozen=True)
class Parts:
    """Parameters and buffers of which a rank has a part, by original name, and the group that has the whole."""

    splits: Mapping[str, Split] = field(default_factory=dict)
    groups: Mapping[str, TensorGroup] = field(default_factory=dict)

    @classmethod
    def of(cls, codes: Mapping[int, StageCode], groups: Mapping[int, TensorGroup]) -> "Parts":
        """Of a rank's stages. A parameter that several of them hold must be the same part in each."""
        splits: dict[str, Split] = {}
        owners: dict[str, TensorGroup] = {}
        for stage, code in codes.items():
            for name, split in code.parts.items():
                if splits.setdefault(name, split) != split:
                    raise _unlike(name)
                owners[name] = groups[stage]
        return cls(splits, owners)

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """The whole of a parameter or of what is shaped like it. All ranks of a group call this together."""
        if name not in self.splits or tensor.dim() == 0:
            return tensor
        split = self.splits[name]
        return gather(self.groups[name], tensor.detach(), split.dim, split.cells, split.unit)

    def own(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part."""
        if name not in self.splits or whole.dim() == 0:
            return whole
        split, group = self.splits[name], self.groups[name]
        return take_part(group.index, group.degree, whole, split.dim, split.cells, split.unit)

    def counted(self, names: Iterable[str], place: int) -> frozenset[str]:
        """Those whose gradients a rank at this place of its group adds to a norm: whole ones are the first one's."""
        return frozenset(name for name in names if place == 0 or name in self.splits)


def check_splits(plan: Plan, model: Model) -> None:
    """Raises PlaitError where a stage cannot split what its plan splits, the same on every rank."""
    parts: dict[str, Split] = {}
    for index, (cut, stage) in enumerate(zip(plan.cut(model.graph), plan.stages, strict=True)):
        if not stage.split:
            continue
        found = propagate(Stretch.of(model, cut.start, cut.end), stage.split, stage.tensor)
        for name in stage.split:
            if name not in found.parameters:
                why = found.whole.get(name, "it is written to, or read in a way that nothing is known of")
                raise PlaitError(
                    f"stage {index} splits {name} over {stage.tensor} devices, but it stays whole there: {why}. Leave "
                    "it out of the stage's `split`, use smaller tensor groups, or plan again."
                )
            if parts.setdefault(name, found.parameters[name]) != found.parameters[name]:
                raise _unlike(name)


def tensor_groups(program: Program) -> list[tuple[str, Ranks]]:
    """The process groups of the tensor groups, the same list on every rank."""
    return [(PURPOSE, stage.group(rank)) for stage in program.stages if stage.tensor > 1 for rank in stage.ranks]


def same_place(stage: StageTable, rank: int) -> Ranks:
    """The ranks of a stage that have the same parts as this one, one of each replica."""
    return stage.ranks[stage.ranks.index(rank) % stage.tensor :: stage.tensor]


def holders(plan: Plan, graph: Graph) -> list[tuple[str, Ranks]]:
    """Each parameter and buffer with the ranks that hold the same numbers of it; a split one once for every part."""
    found: dict[tuple[str, int], set[int]] = {}
    for index, part in enumerate(plan.cut(graph)):
        stage, ranks = plan.stages[index], plan.stage_ranks(index)
        for parameter in part.parameters:
            for position, rank in enumerate(ranks):
                place = position % stage.tensor if parameter.name in stage.split else -1
                found.setdefault((parameter.name, place), set()).add(rank)
    return [(name, tuple(sorted(ranks))) for (name, _), ranks in found.items()]


def _unlike(name: str) -> PlaitError:
    return PlaitError(
        f"{name} is split, and the stages that hold it would keep different parts of it together, so that their "
        "gradients could not be added. Leave it whole (out of `split`) in all of them."
    )
