"""Exposed communication: how long each rank waits for what and computes nothing, and how much of that could be hidden.

Of one rank in one step:

- *Exposed* to a cause is the time in which the rank waits for it (a span of the `wait` lane) and computes nothing (no
  span of the `compute` lane). A moment of several waits counts once, for the one that began first. The causes are
  those of `cause_of`. A wait begins when the data is under way: before that the rank waits for another's computation,
  which is bubble (`plait.run.measured` cuts measured waits so).
- *Communication* of a cause is the time in which it is under way: for gradients and tied parameters the sums the rank
  takes part in (`reduce`), for activations the messages on their way to it (`send`), and in any case the waits for it.
- *Hidden* is the part of its communication during which the rank computes.
- *Room* is the rank's computation that goes on while no communication of its kind is under way and that could go on
  during it. Sums may run beside the computations from the start of a stage's last backward on, for no gradient is final
  before, and beside those up to the end of the stages' first forwards, for in the next step these are what a sum can
  still be late for. (A rank of several stages has the earliest last backward and the latest first forward of them.)
  Gradients and tied parameters go over the same links and share their room. A message may run beside the computations
  of all micro-batches but its own.
- *Hideable* is what is exposed, but no more than there is room for. Never hideable are waits for the messages that come
  before a rank's first computation and leave after its last, which fill and empty the pipeline, and for other ranks'
  loss and gradient norm (`LOSS`, `CLIP`): everybody needs everybody's number.

So of what can be hidden, the share hidden / (hidden + hideable) is. What is exposed and not hideable, but for filling
and emptying, is so because the links take longer than all that can be computed meanwhile.

A sum that goes on when the step has ended goes on in the next one, which is like this one: what of it lies behind the
step's end is counted at the step's beginning.

A measured timeline does not know how long a message was under way that nobody waited for, so there activations seem to
have more room than they have; and a measured sum seems under way until somebody has waited for it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from plait.program import COMPUTE, TIED_PREFIX, Instruction, Op
from plait.simulate.intervals import Interval, Moments, common, length, union
from plait.simulate.timeline import Record, Timeline


class Cause(StrEnum):
    """What a rank waits for."""

    GRADIENT = "gradient"
    ACTIVATION = "activation"
    TIED = "tied"
    OTHERS = "other ranks"


def cause_of(waiting: Instruction) -> Cause:
    """What the instruction that waits is waiting for.

    >>> [str(cause_of(Instruction(Op.AWAIT, name=name))) for name in ("s0.1", "tied.0")]
    ['gradient', 'tied']
    """
    if waiting.op in (Op.LOSS, Op.CLIP):
        return Cause.OTHERS
    if waiting.op in (Op.AWAIT, Op.REDUCE, Op.REDUCE_TIED):
        return Cause.TIED if waiting.name.startswith(TIED_PREFIX) else Cause.GRADIENT
    return Cause.ACTIVATION


@dataclass(frozen=True)
class Exposure:
    """Seconds of one rank by cause; a cause that is missing has none."""

    exposed: Mapping[Cause, float]
    hideable: Mapping[Cause, float]
    hidden: Mapping[Cause, float]
    communication: Mapping[Cause, float]
    room: Mapping[Cause, float]

    @property
    def total(self) -> float:
        return sum(self.exposed.values())

    @property
    def total_hideable(self) -> float:
        return sum(self.hideable.values())


def exposures(timeline: Timeline) -> tuple[Exposure, ...]:
    """Of every rank."""
    by_rank: list[list[Record]] = [[] for _ in range(timeline.num_ranks)]
    arriving: list[list[Interval]] = [[] for _ in range(timeline.num_ranks)]
    for record in timeline.records:
        rank, lane, what, start, end = record
        if lane == "send":
            arriving[what.peer].append((start, end))
        else:
            by_rank[rank].append(record)
    step = timeline.step_seconds
    return tuple(_exposure(own, messages, step) for own, messages in zip(by_rank, arriving, strict=True))


def exposed_seconds(records: Iterable[Record]) -> dict[Cause, float]:
    """Of one rank's records, by cause."""
    records = list(records)
    busy = union(_times(records, "compute"))
    return {cause: length(moments) - length(common(moments, busy)) for cause, moments in _waits(records).items()}


def _exposure(records: Sequence[Record], messages: Iterable[Interval], step_seconds: float) -> Exposure:
    waits, exposed = _waits(records), exposed_seconds(records)
    busy = union(_times(records, "compute"))
    sums: dict[Cause, list[Interval]] = {Cause.GRADIENT: [], Cause.TIED: []}
    for _, lane, what, start, end in records:
        if lane == "reduce":
            sums[cause_of(what)].append((start, end))
    under_way = {c: union([*waits.get(c, ()), *_in_every_step(own, step_seconds)]) for c, own in sums.items()}
    room = _outside(union(_times(_beside_sums(records), "compute")), union(chain(*under_way.values())))
    gradient = min(exposed.get(Cause.GRADIENT, 0.0), room)
    under_way[Cause.ACTIVATION] = union([*waits.get(Cause.ACTIVATION, ()), *messages])
    rooms = {
        Cause.GRADIENT: room,
        Cause.TIED: room - gradient,
        Cause.ACTIVATION: _outside(busy, under_way[Cause.ACTIVATION]),
    }
    messages_hideable = min(exposed.get(Cause.ACTIVATION, 0.0), _beside_other_micro_batches(records))
    could = {**exposed, Cause.ACTIVATION: messages_hideable}
    return Exposure(
        exposed=exposed,
        hideable={cause: min(could.get(cause, 0.0), room) for cause, room in rooms.items()},
        hidden={cause: length(common(moments, busy)) for cause, moments in under_way.items()},
        communication={cause: length(moments) for cause, moments in under_way.items()},
        room=rooms,
    )


def _times(records: Iterable[Record], lane: str) -> list[Interval]:
    return [(start, end) for _, own, _, start, end in records if own == lane]


def _in_every_step(intervals: Iterable[Interval], step_seconds: float) -> Iterator[Interval]:
    """With what reaches into the next step at the beginning of this one."""
    for start, end in intervals:
        yield min(start, step_seconds), min(end, step_seconds)
        if end > step_seconds:
            yield max(start - step_seconds, 0.0), min(end - step_seconds, step_seconds)


def _waits(records: Iterable[Record]) -> dict[Cause, list[Interval]]:
    """When the rank waits for what; every moment has one cause."""
    found: defaultdict[Cause, list[Interval]] = defaultdict(list)
    until = float("-inf")
    for _, _, what, start, end in sorted((r for r in records if r[1] == "wait"), key=lambda record: record[3]):
        if end > until:
            found[cause_of(what)].append((max(start, until), end))
            until = end
    return {cause: union(intervals) for cause, intervals in found.items()}


def _beside_sums(records: Sequence[Record]) -> list[Record]:
    """The computations that sums of gradients may run beside."""
    times = _first_and_last((r for r in records if r[1] == "compute"), (Op.F, Op.B, Op.W))
    forwards = [(what.stage, span) for what, span in times.items() if what.op is Op.F]
    backwards = [(what.stage, span) for what, span in times.items() if what.op is not Op.F]
    first_forwards = dict(sorted(forwards, key=lambda found: found[1], reverse=True))  # of equal keys the last is kept
    last_backwards = dict(sorted(backwards, key=lambda found: found[1]))
    since = min((start for start, _ in last_backwards.values()), default=float("inf"))
    until = max((end for _, end in first_forwards.values()), default=float("-inf"))
    return [record for record in records if record[1] == "compute" and (record[3] >= since or record[4] <= until)]


def _first_and_last(records: Iterable[Record], ops: Collection[Op]) -> dict[Instruction, Interval]:
    """From when to when each computation is done, in however many parts."""
    found: dict[Instruction, Interval] = {}
    for _, _, what, start, end in records:
        if what.op in ops:
            before = found.get(what, (start, end))
            found[what] = min(start, before[0]), max(end, before[1])
    return found


def _beside_other_micro_batches(records: Sequence[Record]) -> float:
    """How long the rank waits for messages that computations of other micro-batches could hide, if they came then."""
    computed = [(start, end) for _, lane, what, start, end in records if lane == "compute" and what.op in COMPUTE]
    if not computed:
        return 0.0
    first, last = min(computed)[0], max(end for _, end in computed)
    waits: defaultdict[int, float] = defaultdict(float)
    own: defaultdict[int, float] = defaultdict(float)
    for _, lane, what, start, end in records:
        if lane == "wait" and cause_of(what) is Cause.ACTIVATION and first <= start and end <= last:
            waits[what.micro_batch] += end - start
        elif lane == "compute" and what.op in COMPUTE:
            own[what.micro_batch] += end - start
    total = sum(own.values())
    return sum(min(seconds, total - own[micro_batch]) for micro_batch, seconds in waits.items())


def _outside(moments: Moments, others: Moments) -> float:
    """How long the moments are outside the others."""
    return length(moments) - length(common(moments, others))
