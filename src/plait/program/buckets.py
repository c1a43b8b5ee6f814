"""Which gradients are summed together, over which ranks.

A stage on tensor groups has its buckets once for every place in a group: the ranks at the same place of all groups have
the same parts of the parameters, and sum those.
"""

from collections.abc import Sequence
from dataclasses import replace

from plait.graph import Parameter
from plait.graph.cut import StageCut
from plait.graph.sharding import split_sizes
from plait.plan import Plan, StagePlan
from plait.program.program import TIED_PREFIX, Bucket


def make_buckets(plan: Plan, cuts: Sequence[StageCut]) -> tuple[Bucket, ...]:
    """Each stage's own parameters in buckets of about `bucket_bytes`; a tied one apart, over all its holders."""
    holders: dict[str, list[StageCut]] = {}
    for part in cuts:
        for parameter in part.parameters:
            if parameter.trainable:
                holders.setdefault(parameter.name, []).append(part)
    buckets: list[Bucket] = []
    for part in cuts:
        stage, ranks = plan.stages[part.index], plan.stage_ranks(part.index)
        # Last layers first: their gradients are final first.
        own = [p for p in reversed(part.parameters) if p.trainable and len(holders[p.name]) == 1]
        for number, members in enumerate(_parted(own, stage, plan.bucket_bytes)):
            readers = (_readers(members, part),)
            buckets += [
                replace(
                    _bucket(f"s{part.index}.{number}", members, stage, place, ranks[place :: stage.tensor], readers),
                    stage=part.index,
                    number=number,
                )
                for place in range(stage.tensor)
            ]
    tied = {name: parts for name, parts in holders.items() if len(parts) > 1}
    for number, (name, parts) in enumerate(tied.items()):
        parameter = next(p for p in parts[0].parameters if p.name == name)
        stage = plan.stages[parts[0].index]  # all of them are on groups of one size, with the same parts of it
        everywhere = tuple(_readers([parameter], part) for part in parts)
        for place in range(stage.tensor):
            holding = {rank for part in parts for rank in plan.stage_ranks(part.index)[place :: stage.tensor]}
            ranks = tuple(sorted(holding))
            buckets.append(_bucket(f"{TIED_PREFIX}{number}", [parameter], stage, place, ranks, everywhere))
    return tuple(buckets)


def _bucket(
    name: str,
    members: Sequence[Parameter],
    stage: StagePlan,
    place: int,
    ranks: tuple[int, ...],
    readers: tuple[tuple[int, int], ...],
) -> Bucket:
    return Bucket(
        name=f"{name}.t{place}" if stage.tensor > 1 else name,
        parameters=tuple(member.name for member in members),
        num_bytes=sum(part_of(member, stage, place).num_bytes for member in members),
        ranks=ranks,
        readers=readers,
    )


def part_of(parameter: Parameter, stage: StagePlan, place: int) -> Parameter:
    """What the device at a place in its tensor group has of a parameter or buffer: all, or a part along a dimension."""
    dimension = stage.split.get(parameter.name)
    if dimension is None:
        return parameter
    shape = list(parameter.shape)
    shape[dimension] = split_sizes(shape[dimension], stage.tensor)[place]
    return replace(parameter, shape=tuple(shape))


def _parted(parameters: Sequence[Parameter], stage: StagePlan, bucket_bytes: int) -> list[list[Parameter]]:
    """Alike at every place of a group, by the first one's bytes, which has the largest parts."""
    found: list[list[Parameter]] = [[]]
    size = 0
    for parameter in parameters:
        full = size >= bucket_bytes
        if found[-1] and (full or found[-1][-1].dtype != parameter.dtype):  # one flat tensor has one type
            found.append([])
            size = 0
        found[-1].append(parameter)
        size += part_of(parameter, stage, 0).num_bytes
    return [members for members in found if members]


def _readers(parameters: Sequence[Parameter], part: StageCut) -> tuple[int, int]:
    """The first and the last atom of a stage that reads any of the parameters."""
    atoms = [atom for parameter in parameters for atom in parameter.atoms if part.start <= atom < part.end]
    return min(atoms), max(atoms)
