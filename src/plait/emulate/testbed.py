"""A plan on its cluster, played on this machine: real processes, real packets, timed devices."""

import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from plait.cluster import Cluster
from plait.cluster.units import format_rate
from plait.cost import Costs
from plait.emulate.calibrate import Findings
from plait.emulate.commands import BedFailed, check_machine
from plait.emulate.dilation import Dilation, as_emulated, choose_dilation, step_of, with_own_devices
from plait.emulate.namespaces import Bed
from plait.emulate.plain import check_plain, plain_task
from plait.emulate.ranks import InBed, Nursery
from plait.emulate.switches import serving, switch_of
from plait.emulate.task import Task, make_task
from plait.emulate.topology import topology
from plait.errors import PlaitError
from plait.graph import Graph
from plait.plan import Plan, validate
from plait.program import Program, check_program, compile_program
from plait.run.control import Message
from plait.run.launch import RunFailed, launch
from plait.run.session import RunRecord
from plait.simulate import Span, Timeline, simulate


class NotTrusted(RunFailed):
    """The machine was too busy for its figures to mean anything."""


@dataclass(frozen=True)
class Emulation:
    """Timelines and seconds are in the cluster's own time, on the bed all of it took `dilation.time` as long.

    `simulated` is the step on the cluster that was emulated; `simulated_on_bed` with the latencies that the bed has
    instead, where that leaves all routes as they are. `limited` says what of the cluster the bed could not show.
    """

    plan: Plan
    dilation: Dilation
    simulated: Timeline
    simulated_on_bed: Timeline | None
    emulated: Timeline
    steps: tuple[float, ...]
    findings: Findings
    limited: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        return self.emulated.step_seconds

    @property
    def error(self) -> float:
        """Of the simulated step, by the emulated one."""
        return self.simulated.step_seconds / self.step_seconds - 1


def emulate(
    plan: Plan,
    graph: Graph,
    costs: Costs,
    out: Path,
    *,
    num_steps: int = 5,
    time: float | None = None,
    force: bool = False,
    on_step: Callable[[RunRecord], None] = lambda record: None,
) -> Emulation:
    """Plays `num_steps` steps of the plan. Raises NotTrusted where the bed was not true, unless `force` is set."""
    play = _Play(plan, graph, costs, time)
    simulated = simulate(play.program, play.plan, costs)
    task = make_task(play.plan, play.program, costs, play.dilation, num_steps=num_steps)
    listener = _Listener(on_step)
    play.run(task, out, listener, force=force)
    outcome = _outcome(play.plan, play.program, costs, play.dilation, simulated, listener)
    return replace(outcome, limited=_limits(plan, play.dilation))


def emulate_plain(
    plan: Plan,
    graph: Graph,
    costs: Costs,
    out: Path,
    *,
    num_steps: int = 5,
    time: float | None = None,
    force: bool = False,
) -> tuple[float, ...]:
    """Seconds of steps, in the cluster's own time, of the plan as plain PyTorch runs it on the same bed."""
    check_plain(plan)
    play = _Play(plan, graph, costs, time)
    plain = plain_task(play.plan, graph, costs, play.dilation)
    task = make_task(play.plan, play.program, costs, play.dilation, num_steps=num_steps)
    listener = _Listener(lambda record: None)
    play.run(task.model_copy(update={"plain": plain}), out, listener, force=force)
    return tuple(seconds / play.dilation.time for seconds in listener.record.settled_seconds)


class _Play:
    """A plan made ready for the bed: its program, and the cluster that the bed stands for."""

    def __init__(self, plan: Plan, graph: Graph, costs: Costs, time: float | None) -> None:
        check_machine()
        validate(plan, graph)
        self.program = compile_program(plan, graph)
        check_program(self.program)
        self.dilation = choose_dilation(step_of(plan, self.program, costs), time=time)
        self.plan = replace(plan, cluster=as_emulated(plan.cluster, self.dilation))

    def run(self, task: Task, out: Path, listener: "_Listener", *, force: bool) -> None:
        """Raises NotTrusted where the bed was not true, unless `force` is set."""
        task.write(out / "task.json")
        layout = topology(self.plan.cluster, self.plan.devices)
        switch = switch_of(self.plan)
        links = self.plan.cluster.links
        bandwidths = [self.dilation.on_bed(links[wire.index].bandwidth) for wire in layout.wires]
        try:
            with (
                stopped_by_signals(),
                Nursery() as nursery,
                Bed(layout, bandwidths, mtu=self.dilation.mtu) as bed,
                serving(bed, switch) as environment,
            ):
                launch(
                    [str((out / "task.json").absolute())],
                    self.plan.num_ranks,
                    logs=out / "logs",
                    on_message=listener,
                    place=InBed(bed, nursery, environment),
                )
        except BedFailed as error:
            raise RunFailed(f"the test bed could not be made: {error}.") from error
        if (why := listener.findings.why_not_trusted()) and not force:
            raise NotTrusted(
                f"this machine is too busy for the figures to be trusted: {why}. Try again when it is idle, slow time "
                "down further with --dilation, or take the figures as they are with --force."
            )


def on_cluster(plan: Plan, cluster: Cluster) -> Plan:
    """The plan on another cluster that has its devices, by name. Raises PlaitError where it lacks one."""
    there = {device.name: index for index, device in enumerate(cluster.devices)}
    names = [device.name for device in plan.cluster.devices]
    used = [names[device] for device in plan.devices]
    if missing := [name for name in used if name not in there]:
        raise PlaitError(
            f"the plan uses device {missing[0]}, which cluster {cluster.name} does not have; its devices are "
            f"{', '.join(list(there)[:8])}{' …' if len(there) > 8 else ''}. Name the cluster the plan was made for, or "
            "plan again for this one."
        )
    stages = tuple(
        replace(stage, devices=tuple(there[names[device]] for device in stage.devices)) for stage in plan.stages
    )
    return replace(plan, cluster=cluster, stages=stages)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM ends what is inside as Ctrl-C does, so that it is put away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Listener:
    """What the ranks tell."""

    def __init__(self, on_step: Callable[[RunRecord], None]) -> None:
        self.record = RunRecord(warm_up=1)
        self.findings = Findings()
        self._on_step = on_step

    def __call__(self, rank: int, message: Message) -> None:
        if message["type"] == "calibration":
            self.findings.lateness += message["lateness"]
            self.findings.rates.update({int(n): share for n, share in message["rates"].items()})
            self.findings.latencies += message["latencies"]
        elif message["type"] == "lateness":
            self.findings.lateness += message["seconds"]
        else:
            self.record.take(rank, message)
        if message["type"] == "step":
            self._on_step(self.record)


def _outcome(
    plan: Plan, program: Program, costs: Costs, dilation: Dilation, simulated: Timeline, listener: _Listener
) -> Emulation:
    measured = listener.record.timeline(program)
    assert measured is not None
    on_bed = replace(plan, cluster=as_emulated(plan.cluster, dilation, latency=listener.findings.latency))
    step_seconds = listener.record.step_seconds / dilation.time
    return Emulation(
        plan,
        dilation,
        simulated,
        simulate(program, on_bed, costs) if _same_routes(plan.cluster, on_bed.cluster, plan.devices) else None,
        replace(_in_own_time(measured, dilation.time), step_seconds=step_seconds),
        tuple(seconds / dilation.time for seconds in listener.record.settled_seconds),
        listener.findings,
    )


def _limits(plan: Plan, dilation: Dilation) -> tuple[str, ...]:
    used = {c >> 1 for a in plan.devices for b in plan.devices for c in plan.cluster.route(a, b)}
    fastest = dilation.as_emulated(math.inf)
    held = [link for link in used if plan.cluster.links[link].bandwidth > fastest]
    found = []
    if held:
        found.append(
            f"{len(held)} of {len(used)} links were held to {format_rate(fastest)}, a fraction of what they have, "
            "because others are so much slower. The simulated step is that of the cluster with links held so."
        )
    if with_own_devices(plan.cluster) != plan.cluster:
        found.append("devices of hosts with fewer compute slots than devices were given processors of their own.")
    return tuple(found)


def _in_own_time(measured: Timeline, slowing: float) -> Timeline:
    spans = tuple(
        Span(span.rank, span.lane, span.what, span.start / slowing, span.end / slowing) for span in measured.spans
    )
    return Timeline("emulated", measured.num_ranks, spans, measured.step_seconds / slowing)


def _same_routes(one: Cluster, other: Cluster, devices: Sequence[int]) -> bool:
    return all(one.route(a, b) == other.route(a, b) for a in devices for b in devices if a != b)
