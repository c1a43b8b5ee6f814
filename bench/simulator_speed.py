"""How fast the event engine reads a program: a 64-stage 1F1B chain of a million instructions, and a small one.

Claim: one million instructions are simulated in at most 2 s, timeline included, the first time the program is seen; the
step of 8 stages and 16 micro-batches, of which a planner's search asks hundreds, in at most 5 ms. Beside it are timed
the same program asked again for its step alone, and what comes before: compiling the plan and checking the program,
which a planner does not repeat for every question. The figures are those of the fastest repeat: another process on the
machine can only add to them.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from _harness import arguments, finish
from plait.cluster import Cluster, parse_cluster
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.graph import Atom, Graph, Parameter, Value
from plait.plan import Plan, even_stages
from plait.program import check_program, compile_program
from plait.simulate import simulate, step_seconds

LIMIT = 2.0  # seconds for a million instructions
SMALL_LIMIT = 5e-3  # seconds for the step of the small program
STAGES = 64
SMALL_STAGES, SMALL_MICRO_BATCHES = 8, 16
REPEATS = 3
SMALL_REPEATS = 50
KIND = "v100"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """Seconds of each step of one repeat."""

    instructions: int
    compile: float
    check: float
    simulate: float
    again: float
    step_seconds: float


def chain(atoms: int) -> Graph:
    """One value of 4 KB a row from each atom to the next."""
    return Graph(
        "chain",
        tuple(Atom(f"a{n}", "", (f"a{n}",)) for n in range(atoms)),
        tuple(Value(f"v{n}", n, (n + 1,), (1, 1024), "float32", 0, True) for n in range(atoms - 1)),
        tuple(Parameter(f"p{n}", (1024, 1024), "float32", (n,), True, False) for n in range(atoms)),
    )


def one_device_per_host(count: int) -> Cluster:
    text = f"""
        [[hosts]]
        name = "node"
        count = {count}
        devices = [{{ kind = "{KIND}", count = 1 }}]
        in_host = {{ bandwidth = "12 GB/s", latency = "5 us" }}
        uplink = {{ bandwidth = "25 Gbit/s", latency = "10 us" }}
    """
    return parse_cluster(text, source="simulator_speed")


def costs(graph: Graph) -> Costs:
    """A forward of 1 ms and a backward of 2 ms per row and atom."""
    atom = AtomCost(0.0, 1e-3, 0.0, 2e-3, 0.0, 4096.0)
    return Costs(graph.fingerprint, {KIND: (atom,) * len(graph.atoms)}, {KIND: OptimizerCost(2.0, 1e-11, 0.0)})


def pipeline(num_stages: int, micro_batches: int) -> tuple[Plan, Graph]:
    graph = chain(num_stages)
    stages = even_stages(list(range(1, num_stages)), num_stages, [[n] for n in range(num_stages)])
    cluster = one_device_per_host(num_stages)
    return Plan("chain", graph.fingerprint, cluster, micro_batches, micro_batches, "1f1b", stages), graph


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    gc.collect()  # or what was made before would be looked through during this
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def run_once(micro_batches: int) -> Row:
    plan, graph = pipeline(STAGES, micro_batches)
    program, compiling = timed(lambda: compile_program(plan, graph))
    _, checking = timed(lambda: check_program(program))
    timeline, simulating = timed(lambda: simulate(program, plan, costs(graph)))
    seconds, again = timed(lambda: step_seconds(program, plan, costs(graph)))
    assert seconds == timeline.step_seconds
    return Row(program.num_instructions, compiling, checking, simulating, again, seconds)


def small_step() -> float:
    """Seconds to answer for a small program not seen before."""
    plan, graph = pipeline(SMALL_STAGES, SMALL_MICRO_BATCHES)
    program, known = compile_program(plan, graph), costs(graph)
    return timed(lambda: step_seconds(program, plan, known))[1]


def show(rows: list[Row]) -> None:
    table = Table(
        "instructions",
        "compile",
        "check",
        "simulate",
        "again, step alone",
        "instructions/s",
        title=f"{STAGES} stages, 1F1B",
    )
    for row in rows:
        times = [f"{seconds:.2f} s" for seconds in (row.compile, row.check, row.simulate, row.again)]
        table.add_row(f"{row.instructions:,}", *times, f"{row.instructions / row.simulate:,.0f}")
    Console().print(table)


def main() -> None:
    options = arguments(__doc__)
    rows = [run_once(400 if options.quick else 2000) for _ in range(REPEATS)]
    show(rows)
    instructions = rows[0].instructions
    seconds = min(row.simulate for row in rows)
    small = min(small_step() for _ in range(SMALL_REPEATS))
    finish(
        "simulator_speed",
        {
            "instructions": instructions,
            "seconds": round(seconds, 2),
            "per_second": round(instructions / seconds),
            "again_seconds": round(min(row.again for row in rows), 2),
            "small_milliseconds": round(small * 1e3, 2),
            "compile_seconds": round(min(row.compile for row in rows), 2),
            "check_seconds": round(min(row.check for row in rows), 2),
        },
        rows=[asdict(row) for row in rows],
        holds=seconds * 1e6 / instructions <= LIMIT and small <= SMALL_LIMIT,
        check=options.check,
    )


if __name__ == "__main__":
    main()
