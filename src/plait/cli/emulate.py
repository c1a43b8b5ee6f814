"""`plait emulate`: a plan's cluster made of network namespaces on this machine, and the plan run on it."""

import json
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from plait.cli.files import write_file
from plait.cli.options import DtypeOption, ProfileOption, SeedOption, checked_dtype
from plait.cli.outcome import show_timelines
from plait.cli.profiled import prepare_any
from plait.cluster import load_cluster
from plait.cluster.units import format_seconds
from plait.emulate.commands import check_machine
from plait.emulate.plain import check_plain
from plait.emulate.testbed import Emulation, emulate, emulate_plain, on_cluster
from plait.plan import load_plan
from plait.report import exposed_data
from plait.simulate import chrome_trace, exposures


def command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="A cluster file instead of the plan's own cluster.")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="The job, where it is not the plan's name.")] = None,
    profile: ProfileOption = None,
    dilation: Annotated[
        float | None, typer.Option("--dilation", help="Slow time down by this factor; chosen if not given.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to run.")] = 5,
    plain: Annotated[
        bool, typer.Option("--plain", help="Also run the plan as plain PyTorch would, on the same bed.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Report also what a busy machine has measured.")] = False,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write a trace for Perfetto.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option("--out", help="Folder for the ranks' logs.")] = Path("runs/emulated"),
) -> None:
    """Try a plan on its cluster, emulated here: timed devices, real processes and packets. Needs root and iproute2."""
    check_machine()
    found = load_plan(plan)
    if cluster is not None:
        found = on_cluster(found, load_cluster(cluster))
    if plain:
        check_plain(found)
    prepared = prepare_any(found, job, profile, dtype=checked_dtype(dtype), seed=seed)
    play: dict[str, Any] = {"num_steps": steps, "time": dilation, "force": force}
    outcome = emulate(found, prepared.graph, prepared.costs, out, **play)
    others = emulate_plain(found, prepared.graph, prepared.costs, out / "plain", **play) if plain else ()
    console = Console(stderr=as_json)
    if trace is not None:
        write_file(trace, json.dumps(chrome_trace([outcome.simulated, outcome.emulated])), flag="--trace")
        console.print(f"wrote {escape(str(trace))} (open it in ui.perfetto.dev)")
    if as_json:
        typer.echo(json.dumps({**as_dict(outcome), "plain_steps_seconds": others}))
        return
    show_emulation(console, outcome)
    if others:
        way = "torch.distributed.pipelining" if len(found.stages) > 1 else "DistributedDataParallel"
        console.print(
            f"plain PyTorch ({way}): [bold]{format_seconds(median(others))}[/] ({format_seconds(min(others))} to "
            f"{format_seconds(max(others))}), {median(others) / outcome.step_seconds:.2f} times Plait's"
        )


def show_emulation(console: Console, outcome: Emulation) -> None:
    plan, dilation, findings = outcome.plan, outcome.dilation, outcome.findings
    console.print(
        f"{plan.num_ranks} devices of {escape(plan.cluster.name)}: [bold]emulated compute, real communication[/]. "
        f"A second of the cluster took {format_seconds(dilation.time)} here, messages had 1/{dilation.payload:.3g} of "
        f"their bytes; times below are the cluster's."
    )
    steps = outcome.steps
    console.print(
        f"step time: simulated [bold]{format_seconds(outcome.simulated.step_seconds)}[/], emulated [bold]"
        f"{format_seconds(outcome.step_seconds)}[/] (median of {len(steps)}, {format_seconds(min(steps))} to "
        f"{format_seconds(max(steps))}; {format_seconds(outcome.step_seconds * dilation.time)} on the bed): "
        f"{outcome.error:+.1%}"
    )
    rates = f"wires within {findings.rate_error:.1%} of their rates, " if findings.rates else ""
    console.print(
        f"the bed: {rates}{format_seconds(findings.latency)} a wire, computations at most "
        f"{format_seconds(findings.late)} late (95 %)"
    )
    for limited in outcome.limited:
        console.print(f"[yellow]note:[/] {escape(limited)}")
    show_timelines(console, [outcome.simulated, outcome.emulated])


def as_dict(outcome: Emulation) -> dict[str, Any]:
    """For programs that read it; times are the cluster's."""
    on_bed, findings = outcome.simulated_on_bed, outcome.findings
    return {
        "format": "plait-emulation",
        "version": 1,
        "label": "emulated compute, real communication",
        "model": outcome.plan.model,
        "cluster": outcome.plan.cluster.name,
        "simulated_seconds": outcome.simulated.step_seconds,
        "simulated_with_bed_latency_seconds": on_bed.step_seconds if on_bed is not None else None,
        "emulated_seconds": outcome.step_seconds,
        "error": outcome.error,
        "steps_seconds": outcome.steps,
        "dilation": {"time": outcome.dilation.time, "payload": outcome.dilation.payload, "mtu": outcome.dilation.mtu},
        "bed": {
            "late_seconds": findings.late,
            "rate_error": findings.rate_error,
            "wire_latency_seconds": findings.latency,
            "not_trusted": findings.why_not_trusted(),
        },
        "notes": list(outcome.limited),
        "exposed": {
            timeline.source: [exposed_data(rank) for rank in exposures(timeline)]
            for timeline in (outcome.simulated, outcome.emulated)
        },
        "timelines": [outcome.simulated.to_dict(), outcome.emulated.to_dict()],
    }
