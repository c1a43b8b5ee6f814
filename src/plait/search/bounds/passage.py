"""Everything one micro-batch makes the machines do: computations, and messages with their way through the network."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from plait.graph import Graph
from plait.plan import Plan, micro_batch_sizes
from plait.program import Op, Program
from plait.program.buckets import make_buckets
from plait.program.compile import _edges, _stage_tables
from plait.program.messages import forward_messages, gradient_messages
from plait.program.program import source_stage
from plait.schedule import RECIPES
from plait.simulate.times import Times


class Message(NamedTuple):
    """From one place to another, forward; with `gradient` as much comes back over the same links.

    `seconds` are those on the slowest channel of `hops`, each of which is busy for its own. It leaves `early` seconds
    before the forward ends that makes it.
    """

    source: int
    sink: int
    seconds: float
    latency: float
    hops: tuple[tuple[int, float], ...]
    gradient: bool
    early: float


@dataclass(frozen=True)
class Passage:
    """One micro-batch of a certain size through all stages; `count` micro-batches of the step are of that size.

    A place is a stage on one of its ranks; lists are by place. A backward is `backward` and then, where the
    schedule splits it, `weights`, for which nobody else waits. Places without rows are not in `working`.
    """

    count: int
    working: tuple[tuple[int, ...], ...]  # places, by stage
    coupled: tuple[bool, ...]  # by stage
    rows: Sequence[int]
    forward: Sequence[float]
    backward: Sequence[float]
    weights: Sequence[float]
    messages: tuple[Message, ...]


def step_tables(plan: Plan, graph: Graph) -> tuple[Program, tuple[int, ...]]:
    """A program's tables without its instructions, for one micro-batch of each size, and how many there are of each."""
    sizes = micro_batch_sizes(plan.batch_size, plan.micro_batches, plan.most_replicas)
    distinct = tuple(sorted(set(sizes)))
    cuts = plan.cut(graph)
    tables = Program((), _stage_tables(plan, cuts, distinct), _edges(cuts), make_buckets(plan, cuts), distinct)
    return tables, tuple(map(sizes.count, distinct))


def splits_backwards(plan: Plan) -> bool:
    """May its backwards come in halves? Of a schedule not known here, they may."""
    if plan.lanes:
        return any("I" in lane for lane in plan.lanes)
    recipe = RECIPES.get(plan.schedule)
    return recipe is None or recipe.splits_backward


def passages(tables: Program, counts: Sequence[int], times: Times) -> tuple[list[int], list[Passage]]:
    """The rank of every place, and a passage for every size of micro-batch."""
    ranks = [rank for stage in tables.stages for rank in stage.ranks]
    first = [0]
    for stage in tables.stages:
        first.append(first[-1] + len(stage.ranks))
    way = _ways(times.plan)
    return ranks, [_passage(tables, number, count, times, first, way) for number, count in enumerate(counts)]


Way = Callable[[int, int], tuple[tuple[tuple[int, float], ...], float]]


def _ways(plan: Plan) -> Way:
    @cache
    def way(source: int, sink: int) -> tuple[tuple[tuple[int, float], ...], float]:
        """Channels with their seconds per byte, and the latency, from one rank to another."""
        a, b = plan.devices[source], plan.devices[sink]
        channels = plan.cluster.route(a, b)
        return tuple((c, 1 / plan.cluster.channel_bandwidth(c)) for c in channels), plan.cluster.latency(a, b)

    return way


def _passage(tables: Program, number: int, count: int, times: Times, first: Sequence[int], way: Way) -> Passage:
    devices = times.plan.cluster.devices
    split = splits_backwards(times.plan)
    known: dict[tuple[object, ...], tuple[float, float, float]] = {}
    rows: list[int] = []
    seconds: list[tuple[float, float, float]] = []
    working = []
    for index, stage in enumerate(tables.stages):
        spans = stage.rows[number]
        working.append(tuple(first[index] + i for i, (low, high) in enumerate(spans) if high > low))
        for rank, (low, high) in zip(stage.ranks, spans, strict=True):
            device = devices[times.plan.devices[rank]]
            group = stage.group(rank) if stage.tensor > 1 else ()
            key = (index, device.kind.name, device.speed, high - low, group)
            if key not in known:
                known[key] = _seconds(times, rank, index, high - low, split) if high > low else (0.0, 0.0, 0.0)
            rows.append(high - low)
            seconds.append(known[key])
    forward, backward, weights = zip(*seconds, strict=True)
    messages = tuple(_messages(tables, number, first, way, times))
    coupled = tuple(stage.coupled for stage in tables.stages)
    return Passage(count, tuple(working), coupled, rows, forward, backward, weights, messages)


def _seconds(times: Times, rank: int, stage: int, rows: int, split: bool) -> tuple[float, float, float]:
    """Forward, backward as far as others wait for it, and the rest of it."""
    forward = times.compute(rank, Op.F, stage, rows)
    if split:
        return forward, times.compute(rank, Op.I, stage, rows), times.compute(rank, Op.W, stage, rows)
    return forward, times.compute(rank, Op.B, stage, rows), 0.0


def _messages(tables: Program, number: int, first: Sequence[int], way: Way, times: Times) -> Iterator[Message]:
    for edge in tables.edges:
        sending = tables.stages[edge.producer]
        early = _early(times, edge.value.producer, edge.producer, number)
        for consumer in edge.consumers:
            if source_stage(edge, consumer, tables.stages) not in (consumer, edge.producer):
                continue  # handed over by another stage of the same ranks, for which it was sent
            receiving = tables.stages[consumer]
            # Gradients that go another way, between tensor groups of different sizes, are left out: they only add.
            returned = {(i, j) for j, i, _ in gradient_messages(edge.value, sending, receiving, number)}
            for i, j, (low, high) in forward_messages(edge.value, sending, receiving, number):
                channels, latency = way(sending.ranks[i], receiving.ranks[j])
                size = edge.value.num_bytes(high - low)
                hops = tuple((channel, size * per_byte) for channel, per_byte in channels)
                seconds = max((busy for _, busy in hops), default=0.0)
                places = first[edge.producer] + i, first[consumer] + j
                gradient = edge.value.requires_grad and (i, j) in returned
                yield Message(*places, seconds, latency, hops, gradient, early[i] if hops else 0.0)


def _early(times: Times, producer: int, index: int, number: int) -> list[float]:
    """By rank of a stage, how long its forward goes on once a value is made: what leaves then is sent inside it."""
    devices, stage = times.plan.cluster.devices, times.program.stages[index]
    known: dict[tuple[object, ...], float] = {}
    found = []
    for rank, (low, high) in zip(stage.ranks, stage.rows[number], strict=True):
        device = devices[times.plan.devices[rank]]
        key = (device.kind.name, device.speed, high - low, stage.group(rank) if stage.tensor > 1 else ())
        if key not in known:
            known[key] = times.phase(rank, index, "forward", producer + 1, stage.end, high - low)
        found.append(known[key])
    return found
