"""Small clusters, chains and costs in round numbers, so that timelines can be worked out by hand.

A forward takes 1 s and a backward 2 s per atom, a message of one row is 4 bytes; links are as each test says.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from plait.cluster import Cluster, Device, DeviceKind, Host, Link
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.graph import Atom, Graph, Parameter, RowMixer, Value
from plait.plan import Plan, StagePlan
from plait.program import Instruction, Program, compile_program, parse_instruction
from plait.simulate import Span, Timeline, simulate

KIND = DeviceKind("unit", 1e12, 1e12, 2**30, 1.0, "cpu")
FREE_LINKS = 1e30  # bytes per second: communication takes no time


def star(
    devices: int,
    *,
    bandwidth: float = FREE_LINKS,
    latency: float = 0.0,
    slots: int | None = None,
    speeds: Sequence[float] | None = None,
) -> Cluster:
    """Devices of one host around a switch; a message takes two links and half the latency on each."""
    speeds = speeds or [1.0] * devices
    names = [f"d{number}" for number in range(devices)]
    return Cluster(
        "star",
        (Host("host", compute_slots=slots),),
        tuple(Device(name, "host", KIND, 2**30, speed) for name, speed in zip(names, speeds, strict=True)),
        ("switch",),
        (*(Link(name, "switch", bandwidth, latency / 2) for name in names), Link("host", "switch", 1.0, 1.0)),
    )


def chain(
    atoms: int, *, mixers: Sequence[int] = (), skips: Sequence[tuple[int, int]] = (), parameter: int = 0
) -> Graph:
    """One atom after the other; `mixers` exchange statistics, `skips` are used again, `parameter` is in bytes."""
    consumers = {n: sorted({n + 1, *(to for start, to in skips if start == n)}) for n in range(atoms - 1)}
    return Graph(
        "chain",
        tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(atoms)),
        tuple(Value(f"v{n}", n, tuple(to), (1, 1), "float32", 0, True) for n, to in consumers.items()),
        tuple(Parameter(f"p{n}", (parameter,), "int8", (n,), True, False) for n in range(atoms) if parameter),
        tuple(RowMixer(n, f"a{n}", "", "statistics", "exchange") for n in mixers),
    )


def costs(graph: Graph, *, forward: float = 1.0, backward: float = 2.0, step: float = 0.0) -> Costs:
    """The same for every number of rows."""
    atom = AtomCost(forward, 0.0, backward, 0.0, 0.0, 0.0)
    return Costs(graph.fingerprint, {"unit": (atom,) * len(graph.atoms)}, {"unit": OptimizerCost(0.0, 0.0, step)})


@dataclass(frozen=True)
class Case:
    graph: Graph
    plan: Plan
    program: Program

    def run(self, **cost: float) -> Timeline:
        return simulate(self.program, self.plan, costs(self.graph, **cost))


def case(
    graph: Graph,
    cluster: Cluster,
    layout: Sequence[int],
    *,
    micro_batches: int = 1,
    rows: int = 1,
    schedule: str = "1f1b",
    clip: bool = False,
    overlap: str = "off",
) -> Case:
    """As many stages as `layout` has numbers of replicas; atoms in equal parts; `rows` per micro-batch."""
    edges = [len(graph.atoms) * n // len(layout) for n in range(len(layout) + 1)]
    devices = iter(range(len(cluster.devices)))
    stages = tuple(
        StagePlan(edges[n], edges[n + 1], tuple(next(devices) for _ in range(size)), (1.0,) * size)
        for n, size in enumerate(layout)
    )
    plan = Plan(
        "chain", graph.fingerprint, cluster, rows * micro_batches, micro_batches, schedule, stages, overlap=overlap
    )
    return Case(graph, plan, compile_program(plan, graph, clip=clip))


def hand_written(made: Case, *ranks: str) -> Case:
    """The same case with these instructions, one per line, instead of the compiled ones."""
    lists = tuple(tuple(map(parse_instruction, text.strip().splitlines())) for text in ranks)
    program = Program(
        lists, made.program.stages, made.program.edges, made.program.buckets, made.program.micro_batch_rows
    )
    return Case(made.graph, made.plan, program)


def span(timeline: Timeline, rank: int, lane: str, label: str) -> Span:
    """The one span with this label."""
    (found,) = [s for s in timeline.spans if (s.rank, s.lane, s.label) == (rank, lane, label)]
    return found


def times(timeline: Timeline, rank: int, lane: str, label: str) -> tuple[float, float]:
    found = span(timeline, rank, lane, label)
    return found.start, found.end


def instruction(text: str) -> Instruction:
    return parse_instruction(text)
