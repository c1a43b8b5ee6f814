"""How fast the event engine reads a program: a 64-stage 1F1B chain of a million instructions.

Claim: one million instructions are simulated in at most 5 s. Compiling the plan and checking the program, which a
planner does not repeat for every question, are timed beside it. The figures are those of the fastest repeat: another
process on the machine can only add to them.
"""

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
from plait.simulate import simulate

LIMIT = 5.0  # seconds for a million instructions
STAGES = 64
REPEATS = 3
KIND = "v100"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """Seconds of each step of one repeat."""

    instructions: int
    compile: float
    check: float
    simulate: float
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


def pipeline(micro_batches: int) -> tuple[Plan, Graph]:
    graph = chain(STAGES)
    stages = even_stages(list(range(1, STAGES)), STAGES, [[n] for n in range(STAGES)])
    cluster = one_device_per_host(STAGES)
    return Plan("chain", graph.fingerprint, cluster, micro_batches, micro_batches, "1f1b", stages), graph


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def run_once(micro_batches: int) -> Row:
    plan, graph = pipeline(micro_batches)
    program, compiling = timed(lambda: compile_program(plan, graph))
    _, checking = timed(lambda: check_program(program))
    timeline, simulating = timed(lambda: simulate(program, plan, costs(graph)))
    return Row(program.num_instructions, compiling, checking, simulating, timeline.step_seconds)


def show(rows: list[Row]) -> None:
    table = Table("instructions", "compile", "check", "simulate", "instructions/s", title=f"{STAGES} stages, 1F1B")
    for row in rows:
        times = [f"{seconds:.2f} s" for seconds in (row.compile, row.check, row.simulate)]
        table.add_row(f"{row.instructions:,}", *times, f"{row.instructions / row.simulate:,.0f}")
    Console().print(table)


def main() -> None:
    options = arguments(__doc__)
    rows = [run_once(400 if options.quick else 2000) for _ in range(REPEATS)]
    show(rows)
    instructions = rows[0].instructions
    seconds = min(row.simulate for row in rows)
    finish(
        "simulator_speed",
        {
            "instructions": instructions,
            "seconds": round(seconds, 2),
            "per_second": round(instructions / seconds),
            "compile_seconds": round(min(row.compile for row in rows), 2),
            "check_seconds": round(min(row.check for row in rows), 2),
        },
        rows=[asdict(row) for row in rows],
        holds=seconds * 1e6 / instructions <= LIMIT,
        check=options.check,
    )


if __name__ == "__main__":
    main()
