"""From a plan to its program.

The schedule gives each rank its computations in order. Around them: a value is sent right after the
forward that makes it and its gradient right after the backward (its input half, where it is split); receives
are posted a few computations ahead, in the order in which the peer sends, and gradients freed a few backwards later: a
slow link is never idle because one side is not ready yet. A value that a stage makes before its last atom is sent
inside the forward. Between stages on the same ranks nothing is sent (`HandOver`). Gradient sums: `overlap`.

[Note: frees] A FREE waits until its message has left, so it must not come where the receiver cannot have posted
its receive yet, because that again waits for this rank. It is put after the first backward that some order of all
computations (`levels`) has at or after the one the receive is posted before: in that order everything then runs.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plait.cost import check_synchronisation
from plait.errors import PlaitError
from plait.graph import Graph
from plait.graph.cut import StageCut, stage_of_atom
from plait.plan import Plan, StagePlan, micro_batch_sizes, split_rows
from plait.plan.rows import Span
from plait.program.buckets import make_buckets
from plait.program.garbage import no_collection
from plait.program.instructions import Instruction, Op
from plait.program.levels import levels
from plait.program.messages import forward_messages, gradient_messages
from plait.program.overlap import Endings, synchronised
from plait.program.program import Bucket, Edge, Program, StageTable, source_stage
from plait.schedule import Action, Schedule, make_schedule, schedule_from_lanes

Channel = tuple[int, int]
RECEIVES_AHEAD = 3  # computations, weight gradients aside, by which a rank's receives are posted early
FREES_BEHIND = 3  # backwards after which a rank waits for the gradients of one to have left
_NEVER = 1 << 62  # the level of what waits for ever; the static check says why
_BACKWARDS = (Op.B, Op.I)  # what makes the gradients to send


@dataclass(slots=True)
class _Computation:
    """One action on one rank: what it waits for and what it lets go."""

    instruction: Instruction
    level: int
    posted: int = 0  # level at which its receives are posted
    freed: int = 0  # level from which all it sends has a receiver
    receives: list[Instruction] = field(default_factory=list)
    sends: list[Instruction] = field(default_factory=list)


def compile_program(plan: Plan, graph: Graph, *, batch_rows: int | None = None, clip: bool = False) -> Program:
    """The program of one step on `batch_rows` rows (the plan's batch size unless the batch is a short one)."""
    cuts = plan.cut(graph)
    sizes = micro_batch_sizes(batch_rows or plan.batch_size, plan.micro_batches, plan.most_replicas)
    stages = _stage_tables(plan, cuts, sizes)
    edges = _edges(cuts)
    buckets = make_buckets(plan, cuts)
    check_synchronisation(plan.sync)
    with no_collection():
        schedule = _schedule(plan, len(sizes))
        computations = _computations(plan, schedule, stages, edges)
        _add_messages(computations, stages, edges)
        overlap = "backward" if clip and plan.overlap == "full" else plan.overlap
        endings = _endings(schedule, _sum_orders(plan, buckets) if overlap == "full" else {})
        ending_of = {rank: found for found in endings for stage in found.stages for rank in stages[stage].ranks}
        ranks = (
            tuple(
                synchronised(
                    rank,
                    _with_receives(rank, computations),
                    stages,
                    buckets,
                    ending_of[rank],
                    overlap=overlap,
                    clip=clip,
                )
            )
            for rank in range(plan.num_ranks)
        )
        return Program(tuple(ranks), stages, edges, buckets, sizes)


def _schedule(plan: Plan, micro_batches: int) -> Schedule:
    if plan.lanes:
        return schedule_from_lanes(plan.schedule, plan.lanes, plan.positions, micro_batches)
    return make_schedule(plan.schedule, plan.positions, micro_batches)


def _sum_orders(plan: Plan, buckets: Sequence[Bucket]) -> dict[int, Sequence[int]]:
    """By stage, for those whose sums begin in another order than that in which gradients become final."""
    orders: dict[int, Sequence[int]] = {}
    for index, stage in enumerate(plan.stages):
        if not stage.sum_order:
            continue
        orders[index] = stage.sum_order
        own = {bucket.number for bucket in buckets if bucket.stage == index}
        if sorted(stage.sum_order) != sorted(own):
            raise PlaitError(
                f"stage {index} has sum_order {list(stage.sum_order)}, but its buckets have the numbers 0 to "
                f"{len(own) - 1}, each of which belongs there once. The plan is damaged: plan again."
            )
    return orders


def _endings(schedule: Schedule, orders: Mapping[int, Sequence[int]]) -> list[Endings]:
    split = {action.stage for lane in schedule.lanes for action in lane if action.kind == "W"}
    backwards = [dict.fromkeys(action.stage for action in reversed(lane)) for lane in schedule.lanes]
    return [Endings(list(ended)[::-1], split, orders) for ended in backwards]


def _stage_tables(plan: Plan, cuts: Sequence[StageCut], sizes: Sequence[int]) -> tuple[StageTable, ...]:
    return tuple(
        StageTable(
            start=stage.start,
            end=stage.end,
            ranks=plan.stage_ranks(index),
            rows=tuple(_rows_of_ranks(stage, size) for size in sizes),
            coupled=stage.replicas > 1 and any(mixer.remedy == "exchange" for mixer in part.row_mixers),
            recompute=stage.recompute,
            tensor=stage.tensor,
        )
        for index, (stage, part) in enumerate(zip(plan.stages, cuts, strict=True))
    )


def _rows_of_ranks(stage: StagePlan, rows: int) -> tuple[Span, ...]:
    return tuple(span for span in split_rows(rows, stage.shares) for _ in range(stage.tensor))


def _edges(cuts: Sequence[StageCut]) -> tuple[Edge, ...]:
    return tuple(
        Edge(
            value=value,
            producer=part.index,
            consumers=tuple(sorted({stage_of_atom(cuts, atom) for atom in value.consumers} - {part.index})),
        )
        for part in cuts
        for value in part.sends
    )


def _computations(
    plan: Plan, schedule: Schedule, stages: Sequence[StageTable], edges: Sequence[Edge]
) -> list[list[_Computation]]:
    found: list[list[_Computation]] = [[] for _ in range(plan.num_ranks)]
    level_of = levels(schedule, edges)
    for lane in schedule.lanes:
        for action in lane:
            for rank, instruction in _on_ranks(action, stages):
                found[rank].append(_Computation(instruction, level_of.get(action, _NEVER)))
    for own in found:
        before: deque[int] = deque(
            maxlen=RECEIVES_AHEAD
        )  # levels of the last computations, but for W, which waits for nothing
        for computation in own:
            computation.posted = before[0] if before else own[0].level
            if computation.instruction.op is not Op.W:
                before.append(computation.level)
    return found


def _on_ranks(action: Action, stages: Sequence[StageTable]) -> list[tuple[int, Instruction]]:
    """The action on every replica that has rows of this micro-batch."""
    stage = stages[action.stage]
    return [
        (rank, Instruction(Op(action.kind), action.stage, action.micro_batch, first_row=first, last_row=last))
        for rank, (first, last) in zip(stage.ranks, stage.rows[action.micro_batch], strict=True)
        if last > first
    ]


def _add_messages(computations: list[list[_Computation]], stages: Sequence[StageTable], edges: Sequence[Edge]) -> None:
    forward, backward = (
        {
            (rank, *c.instruction[1:3]): c
            for rank, todo in enumerate(computations)
            for c in todo
            if c.instruction.op in ops
        }
        for ops in ((Op.F,), _BACKWARDS)
    )
    by_message = [(edge, c) for edge in edges for c in edge.consumers if source_stage(edge, c, stages) == c]
    for micro_batch in range(len(stages[0].rows)):
        for edge, consumer in by_message:
            value, making, using = edge.value, stages[edge.producer], stages[consumer]
            early = value.producer + 1 < making.end
            for i, j, rows in forward_messages(value, making, using, micro_batch):
                source = (making.ranks[i], edge.producer, micro_batch)
                sink = (using.ranks[j], consumer, micro_batch)
                _add_message(
                    value.name, rows, forward[source], forward[sink], source, sink, gradient=False, inside=early
                )
            for j, i, rows in gradient_messages(value, making, using, micro_batch) if value.requires_grad else ():
                source = (making.ranks[i], edge.producer, micro_batch)
                sink = (using.ranks[j], consumer, micro_batch)
                _add_message(value.name, rows, backward[sink], backward[source], sink, source, gradient=True)

    for computation in (*forward.values(), *backward.values()):
        computation.sends.sort(key=lambda send: not send.inside)


def _add_message(
    name: str,
    rows: Span,
    maker: _Computation,
    user: _Computation,
    source: tuple[int, int, int],
    sink: tuple[int, int, int],
    *,
    gradient: bool,
    inside: bool = False,
) -> None:
    """Rows made by one computation for another; `source` and `sink` are rank, stage and micro-batch."""
    maker.sends.append(Instruction(Op.SEND, *source[1:], name, gradient, sink[0], *rows, inside))
    user.receives.append(Instruction(Op.RECV, *sink[1:], name, gradient, source[0], *rows))
    maker.freed = max(maker.freed, user.posted)


def _with_receives(rank: int, computations: Sequence[Sequence[_Computation]]) -> list[Instruction]:
    """The rank's computations with sends, receives posted in the senders' order, and frees between them."""
    own = computations[rank]
    arriving = _arrivals(rank, computations)
    due: dict[Channel, int] = dict.fromkeys(arriving, 0)
    posted: set[tuple[object, ...]] = set()
    instructions: list[Instruction] = []
    post_next = 0
    unfreed: list[tuple[int, Instruction]] = []  # by the level from which they are safe
    leaving: deque[tuple[int, Instruction]] = deque()  # gradients of the last backwards, on their way
    sent_forward = {c.instruction[1:3]: c.freed for c in own if c.instruction.op is Op.F and c.sends}
    for computation in own:
        # The transfers for the next computations run beside this one; a W waits for none.
        while post_next < len(own) and own[post_next].posted <= computation.level:
            for receive in own[post_next].receives:
                channel = (receive.peer, rank)
                while receive not in posted:  # everything the peer sends before it comes first
                    earlier = arriving[channel][due[channel]]
                    due[channel] += 1
                    posted.add(earlier)
                    instructions.append(earlier)
            post_next += 1
        early = [send for send in computation.sends if send.inside]
        instructions += early
        instructions.append(computation.instruction)
        instructions += computation.sends[len(early) :]
        op, stage, micro_batch = computation.instruction[:3]
        if op in _BACKWARDS:
            if (stage, micro_batch) in sent_forward:
                unfreed.append((sent_forward[stage, micro_batch], Instruction(Op.FREE, stage, micro_batch)))
            instructions += [free for level, free in unfreed if level <= computation.level]
            unfreed = [(level, free) for level, free in unfreed if level > computation.level]
            if computation.sends:  # not yet: the rank would wait for them to leave instead of computing
                leaving.append((computation.freed, Instruction(Op.FREE, stage, micro_batch, gradient=True)))
                if len(leaving) >= FREES_BEHIND:
                    unfreed.append(leaving.popleft())
    return instructions + [free for _, free in (*unfreed, *leaving)]


def _arrivals(rank: int, computations: Sequence[Sequence[_Computation]]) -> dict[Channel, list[Instruction]]:
    """What each peer sends to `rank`, in its order, as the receives that match."""
    wanted = {
        (r.peer, r.name, r.gradient, r.micro_batch, r.first_row, r.last_row): r
        for c in computations[rank]
        for r in c.receives
    }
    arriving: dict[Channel, list[Instruction]] = {}
    for peer in {r.peer for r in wanted.values()}:
        arriving[peer, rank] = [
            wanted[peer, s.name, s.gradient, s.micro_batch, s.first_row, s.last_row]
            for c in computations[peer]
            for s in c.sends
            if s.peer == rank
        ]
    return arriving
