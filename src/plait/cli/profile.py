"""`plait profile`: what every atom costs on this machine."""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from plait.cli.options import BatchOption, DtypeOption, JobArgument, SeedOption, checked_dtype
from plait.cli.prepare import prepare
from plait.cluster import load_cluster
from plait.cluster.units import format_bytes, format_seconds


def command(
    job: JobArgument,
    batch: BatchOption = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Atoms to show, the dearest first.")] = 15,
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
) -> None:
    """Measure a job's compute per atom on this machine; plans reuse the measurement."""
    prepared = prepare(job, load_cluster("local:1"), batch_size=batch, dtype=checked_dtype(dtype), seed=seed)
    costs, graph = prepared.costs, prepared.model.graph
    rows = max(1, prepared.batch_size // 4)

    def seconds(index: int) -> float:
        forward = costs.seconds("cpu", "forward", index, index + 1, rows)
        return forward + costs.seconds("cpu", "backward", index, index + 1, rows)

    dearest = sorted(range(len(graph.atoms)), key=seconds, reverse=True)[:most]
    table = Table(title=escape(f"{job}: {len(graph.atoms)} atoms, micro-batch of {rows} rows"), title_justify="left")
    for name in ("atom", "forward", "backward", "share", "saved for backward"):
        table.add_column(name, justify="left" if name == "atom" else "right")
    total = sum(seconds(index) for index in range(len(graph.atoms)))
    for index in dearest:
        table.add_row(
            escape(graph.atoms[index].name),
            format_seconds(costs.seconds("cpu", "forward", index, index + 1, rows)),
            format_seconds(costs.seconds("cpu", "backward", index, index + 1, rows)),
            f"{seconds(index) / total:.1%}",
            format_bytes(costs.saved_bytes("cpu", index, index + 1, rows)),
        )
    Console().print(table)
    Console().print(f"all atoms, forward and backward: {format_seconds(total)} on one thread")
