"""Where a rank's program begins, awaits and uses its gradient sums.

- `off`: all sums begin when the rank has computed everything; then it waits for them, and steps.
- `backward`: a sum begins inside the last computation that adds to its bucket, as soon as the gradients are final; the
  rank steps each bucket when its sum is there.
- `full`: so do sums, but a bucket that several ranks share is awaited and stepped in the next step, inside the forward
  that is the first to read it. A step begins with the sums of the one before under way.

Ranks of a group begin their sums in one order: stages as they end on a rank that has rows of every micro-batch, and of
each stage its buckets as gradients become final; with `full` as the plan says (`StagePlan.sum_order`), for of those
that wait for the links the next step needs some sooner than others. A backward goes through the atoms from
the last to the first; weight gradients that were put off (W) are done from the first to the last. A tied parameter is
final when all stages of the rank that read it are. The norm of all gradients (`clip`) needs all sums before the first
update, so no `full` with it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from plait.program.instructions import Instruction, Op
from plait.program.program import Bucket, StageTable

_ADDS_GRADIENTS = (Op.B, Op.I, Op.W)


@dataclass(frozen=True)
class Endings:
    """Stages of one position in the order in which they end, those of them whose weight gradients are put off, and the
    orders of sums that are given."""

    stages: Sequence[int]
    split: Collection[int]
    orders: Mapping[int, Sequence[int]]


def synchronised(
    rank: int,
    instructions: Sequence[Instruction],
    stages: Sequence[StageTable],
    buckets: Sequence[Bucket],
    endings: Endings,
    *,
    overlap: str,
    clip: bool,
) -> Iterator[Instruction]:
    """The rank's instructions with its sums, the waits for them and the updates."""
    own = [bucket for bucket in buckets if rank in bucket.ranks]
    alone = [Instruction(Op.STEP, name=bucket.name) for bucket in own if len(bucket.ranks) == 1]
    shared = _in_order([bucket for bucket in own if len(bucket.ranks) > 1], endings)
    sums = _Sums(instructions, stages)
    if overlap == "off":
        sums.begin_at_the_end(shared)
    else:
        sums.begin_inside(shared)
    if overlap == "full":
        sums.use_inside(shared)
    yield from sums.written()
    if clip or overlap == "off":
        yield from (Instruction(Op.AWAIT, name=bucket.name) for bucket in shared)
        yield Instruction(Op.LOSS)
        if clip:
            yield Instruction(Op.CLIP)
        yield from (*alone, *(Instruction(Op.STEP, name=bucket.name) for bucket in shared))
        return
    yield from alone
    if overlap == "backward":
        yield from (Instruction(op, name=bucket.name) for bucket in shared for op in (Op.AWAIT, Op.STEP))
    yield Instruction(Op.LOSS)


def _in_order(buckets: Sequence[Bucket], endings: Endings) -> list[Bucket]:
    """In the order in which the sums begin; tied ones in the end."""
    found: list[Bucket] = []
    for stage in endings.stages:
        own = [bucket for bucket in buckets if bucket.stage == stage]
        needed = sorted(own, key=lambda bucket: bucket.readers)
        if stage in endings.orders:
            given = [needed[number] for number in endings.orders[stage] if number < len(needed)]
            found += given + [bucket for bucket in needed if bucket not in given]
        else:
            found += sorted(own, key=lambda bucket: bucket.readers, reverse=stage not in endings.split)
    return found + [bucket for bucket in buckets if bucket.tied]


@dataclass
class _Sums:
    """A rank's instructions and what comes between them, by the index of a computation."""

    instructions: Sequence[Instruction]
    stages: Sequence[StageTable]
    first: list[Instruction] = field(default_factory=list)
    before: defaultdict[int, list[Instruction]] = field(default_factory=lambda: defaultdict(list))
    after: defaultdict[int, list[Instruction]] = field(default_factory=lambda: defaultdict(list))

    def begin_at_the_end(self, buckets: Sequence[Bucket]) -> None:
        self.after[len(self.instructions) - 1] += [_begin(bucket) for bucket in buckets]

    def begin_inside(self, buckets: Sequence[Bucket]) -> None:
        """Where a stage ends on this rank before one whose sums come first, its sums begin behind those."""
        last = {ins.stage: index for index, ins in enumerate(self.instructions) if ins.op in _ADDS_GRADIENTS}
        latest = -1
        for bucket in buckets:
            index = len(self.instructions) - 1 if bucket.stage is None else last.get(bucket.stage, -1)
            if index < latest or bucket.stage not in last:
                latest = max(latest, index)
                self.after[latest].append(_begin(bucket))
            else:
                latest = index
                self.before[index].append(_begin(bucket, self.instructions[index]))

    def use_inside(self, buckets: Sequence[Bucket]) -> None:
        """Of buckets that no forward of this rank reads, because it has no rows, nobody waits for the updates."""
        forwards: dict[int, int] = {}
        for index, ins in enumerate(self.instructions):
            if ins.op is Op.F:
                forwards.setdefault(ins.stage, index)
        used: list[tuple[int, int, Bucket]] = []  # by the index of the forward, and the atom that reads first
        for bucket in buckets:
            places = [(forwards[s], atom) for s in forwards for atom, _ in bucket.readers if self._has(s, atom)]
            if places:
                used.append((*min(places), bucket))
            else:
                self.first += [Instruction(op, name=bucket.name) for op in (Op.AWAIT, Op.STEP)]
        inside: defaultdict[int, list[Instruction]] = defaultdict(list)
        for index, _, bucket in sorted(used, key=lambda found: found[:2]):
            inside[index] += [_inside(op, bucket, self.instructions[index]) for op in (Op.AWAIT, Op.STEP)]
        for index, found in inside.items():
            self.before[index][:0] = found

    def _has(self, stage: int, atom: int) -> bool:
        return self.stages[stage].start <= atom < self.stages[stage].end

    def written(self) -> Iterator[Instruction]:
        yield from self.first
        if not self.instructions:
            yield from self.after[-1]
        for index, instruction in enumerate(self.instructions):
            yield from self.before.get(index, ())
            yield instruction
            yield from self.after.get(index, ())


def _begin(bucket: Bucket, computation: Instruction | None = None) -> Instruction:
    op = Op.REDUCE_TIED if bucket.tied else Op.REDUCE
    return Instruction(op, name=bucket.name) if computation is None else _inside(op, bucket, computation)


def _inside(op: Op, bucket: Bucket, computation: Instruction) -> Instruction:
    return Instruction(op, computation.stage, computation.micro_batch, bucket.name, inside=True)
