"""Random graphs, plans for them and programs of those: plain data, no model behind it."""

from dataclasses import dataclass, replace
from functools import cache

from hypothesis import strategies as st
from lanes import random_lanes

from plait.cluster import Aggregator, Cluster, Device, DeviceKind, Host, Link
from plait.cost import SYNCHRONISATIONS, WITHOUT_A_SWITCH, AtomCost, Costs, OptimizerCost
from plait.graph import Atom, Graph, Parameter, RowMixer, Value
from plait.graph.sharding import Collective, Sharding
from plait.plan import OVERLAPS, Plan, StagePlan, validate
from plait.program import Program, compile_program

KIND = DeviceKind("unit", 1e12, 1e12, 2**40, 1.0, "cpu")


@cache
def star(devices: int, slots: int | None = None) -> Cluster:
    """Devices around a switch."""
    names = [f"d{n}" for n in range(devices)]
    links = [Link(name, "switch", 1e3, 1e-3) for name in names]
    return Cluster(
        "star",
        (Host("host", slots),),
        tuple(Device(name, "host", KIND, 2**40) for name in names),
        ("switch",),
        (*links, Link("host", "switch", 1.0, 1.0)),
    )


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Chains with skips over any distance, values without rows or gradients, tied and frozen parameters."""
    count = draw(st.integers(1, 7))
    values = [draw(_values(producer, count)) for producer in range(count - 1) for _ in range(draw(st.integers(0, 2)))]
    numbered = [Value(f"v{n}", *rest) for n, rest in enumerate(values)]
    parameters = [draw(_parameters(number, count)) for number in range(draw(st.integers(0, 6)))]
    coupled = draw(st.sets(st.integers(0, count - 1), max_size=2))
    return Graph(
        "random",
        tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(count)),
        tuple(numbered),
        tuple(parameters),
        tuple(RowMixer(atom, f"a{atom}", "", "statistics", "exchange") for atom in sorted(coupled)),
    )


@st.composite
def _values(draw: st.DrawFn, producer: int, count: int) -> tuple:
    consumers = draw(st.sets(st.integers(producer + 1, count - 1), min_size=1, max_size=3))
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    batch_dim = draw(st.none() | st.integers(0, len(shape) - 1))
    return (
        producer,
        tuple(sorted(consumers)),
        shape,
        draw(st.sampled_from(["float32", "int64"])),
        batch_dim,
        draw(st.booleans()),
    )


@st.composite
def _parameters(draw: st.DrawFn, number: int, count: int) -> Parameter:
    atoms = draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=3))
    is_buffer = draw(st.booleans())
    trainable = not is_buffer and draw(st.booleans() | st.just(True))
    shape = (draw(st.integers(1, 100)),)
    return Parameter(f"p{number}", shape, "float32", tuple(sorted(atoms)), trainable, is_buffer)


@st.composite
def plans(draw: st.DrawFn, graph: Graph, *, plain: bool) -> Plan:
    """Stages on positions of some devices each, in any order of actions; where `plain` one at each, in a named one."""
    count = len(graph.atoms)
    boundaries = sorted(draw(st.sets(st.integers(1, count - 1), max_size=4))) if count > 1 else []
    edges = [0, *boundaries, count]
    placement = list(range(len(edges) - 1)) if plain else draw(_placements(len(edges) - 1))
    replicas = [draw(st.integers(1, 4)) for _ in set(placement)]
    tensor = draw(_tensor_groups(graph, edges, placement))
    sizes = [count * tensor[place] for place, count in enumerate(replicas)]
    sync = draw(st.sampled_from(sorted(SYNCHRONISATIONS)))
    cluster = star(sum(sizes), draw(st.sampled_from([None, None, 2])))
    if sync not in WITHOUT_A_SWITCH:
        cluster = replace(cluster, aggregators=(Aggregator("switch", 8, 100, 0.9),))
    devices = draw(st.permutations(range(sum(sizes))))
    held = []
    for place, size in enumerate(sizes):
        chosen, devices = tuple(devices[:size]), devices[size:]
        held.append((chosen, tuple(draw(st.sampled_from([1.0, 1.0, 0.5, 3.0])) for _ in range(replicas[place]))))
    micro_batches = draw(st.integers(1, 6))
    made = Plan(
        model=graph.name,
        fingerprint=graph.fingerprint,
        cluster=cluster,
        batch_size=micro_batches * max(replicas) + draw(st.integers(0, 9)),
        micro_batches=micro_batches,
        schedule=draw(st.sampled_from(["gpipe", "1f1b"])),
        stages=tuple(
            StagePlan(
                edges[stage],
                edges[stage + 1],
                *held[place],
                recompute=not plain and draw(st.booleans()),
                tensor=tensor[place],
                split=splits(graph, edges[stage], edges[stage + 1], tensor[place]),
            )
            for stage, place in enumerate(placement)
        ),
        lanes=() if plain else draw(_lanes(placement, micro_batches)),
        sync=sync,
        overlap=draw(st.sampled_from(OVERLAPS)),
        bucket_bytes=draw(st.sampled_from([1, 300, 2**20])),
    )
    validate(made, graph)
    return made


@st.composite
def _tensor_groups(draw: st.DrawFn, graph: Graph, edges: list[int], placement: list[int]) -> list[int]:
    """Devices of a replica at each position; the same at all where a parameter is tied over several stages."""
    sizes = [draw(st.sampled_from([1, 1, 2, 3])) for _ in set(placement)]
    homes = [{sum(edge <= atom for edge in edges[1:]) for atom in p.atoms} for p in graph.parameters]
    return [sizes[0]] * len(sizes) if any(len(home) > 1 for home in homes) else sizes


def splits(graph: Graph, start: int, end: int, tensor: int) -> dict[str, int]:
    """Of the parameters that can be, every other one is split."""
    own = [p for p in graph.parameters[::2] if any(start <= atom < end for atom in p.atoms)]
    return {p.name: 0 for p in own if p.shape[0] >= tensor} if tensor > 1 else {}


def sharding(stage: StagePlan) -> Sharding:
    """Atoms that take other parts of their work each, and exchange what they make, forward, backward or both."""
    atoms = range(stage.start, stage.end)
    kinds = ("all-reduce", "all-gather", "reduce-scatter")
    exchanged = [
        Collective(atom, kinds[atom % 3], phase, 8.0, 4.0)
        for atom in atoms
        for phase in ("forward", "backward")
        if (atom + len(phase)) % 3
    ]
    part = 1 / stage.tensor
    parts = tuple(part if atom % 2 else 1.0 for atom in atoms)
    return Sharding(stage.start, stage.end, stage.tensor, stage.split, tuple(exchanged), parts, parts, {})


@st.composite
def _placements(draw: st.DrawFn, stages: int) -> list[int]:
    """A position per stage, numbered as they first appear."""
    found = [0]
    while len(found) < stages:
        found.append(draw(st.integers(0, max(found) + 1)))
    return found


@st.composite
def _lanes(draw: st.DrawFn, placement: list[int], micro_batches: int) -> tuple[str, ...]:
    split = draw(st.sets(st.sampled_from(range(len(placement)))))
    return random_lanes(placement, micro_batches, split=split, seed=draw(st.integers(0, 1000)))


@dataclass(frozen=True)
class Compiled:
    graph: Graph
    plan: Plan
    program: Program

    @property
    def costs(self) -> Costs:
        atom = AtomCost(0.5, 0.25, 1.0, 0.5, 16.0, 8.0, 0.25, 0.125)
        optimizer = OptimizerCost(2.0, 1e-3, 0.125)
        atoms = (atom,) * len(self.graph.atoms)
        shardings = tuple(sharding(stage) for stage in self.plan.stages if stage.tensor > 1)
        return Costs(self.graph.fingerprint, {"unit": atoms}, {"unit": optimizer}, shardings=shardings)


@st.composite
def compiled(draw: st.DrawFn, *, plain: bool = False) -> Compiled:
    """A program of a random plan, for its whole batch or a shorter last one, with or without clipping."""
    graph = draw(graphs())
    plan = draw(plans(graph, plain=plain))
    rows = draw(st.none() | st.integers(1, plan.batch_size))
    return Compiled(graph, plan, compile_program(plan, graph, batch_rows=rows, clip=draw(st.booleans())))
