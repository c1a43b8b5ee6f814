"""Why a step takes as long as it does, and why another plan's takes longer: from their timelines alone.

On every rank   step = computing + waiting for data on the wire + standing idle   (`Timeline.ranks`), so on the busiest
rank of each plan the difference of two steps is the sum of three differences, and the largest of them is the reason.
Idle time has a reason of its own where a link is in use for longer than any device computes: all wait for its turn.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from plait.cluster.units import format_bytes, format_seconds
from plait.plan import Plan
from plait.program import Op, RankMemory
from plait.simulate import Timeline

Cause = Literal["nothing", "compute", "messages", "gradient sums", "link", "bubble", "memory"]
_SAME = 0.0005  # of the step: what no table would show


@dataclass(frozen=True)
class Reason:
    cause: Cause
    text: str


@dataclass(frozen=True)
class Use:
    """Something that does one thing at a time, and how much of the step it is in use."""

    what: str
    seconds: float

    def of(self, step_seconds: float) -> str:
        return f"{self.what} for {format_seconds(self.seconds)}, {self.seconds / step_seconds:.0%} of the step"


@dataclass(frozen=True)
class Step:
    """A plan with its timeline, and what the timeline says of its resources."""

    plan: Plan
    timeline: Timeline

    @property
    def seconds(self) -> float:
        return self.timeline.step_seconds

    @cached_property
    def busiest_rank(self) -> int:
        return max(range(self.timeline.num_ranks), key=lambda rank: self.timeline.ranks[rank].busy)

    @property
    def compute(self) -> float:
        return self.timeline.ranks[self.busiest_rank].busy

    @property
    def bubble(self) -> float:
        return self.timeline.ranks[self.busiest_rank].bubble

    @cached_property
    def waits(self) -> dict[Cause, float]:
        """Exposed communication on the busiest rank, by what it waits for."""
        found: dict[Cause, float] = {"gradient sums": 0.0, "messages": 0.0}
        for span in self.timeline.spans:
            if span.rank == self.busiest_rank and span.lane == "wait":
                found["gradient sums" if span.what.op is Op.AWAIT else "messages"] += span.end - span.start
        return found

    @cached_property
    def busiest_stage(self) -> str:
        """The stages of the busiest rank, and where it is."""
        device = self.plan.devices[self.busiest_rank]
        stages = [index for index, stage in enumerate(self.plan.stages) if device in stage.devices]
        named = f"stage {stages[0]}" if len(stages) == 1 else f"stages {', '.join(map(str, stages))}"
        return f"{named} on {self.plan.cluster.devices[device].name}"

    @cached_property
    def busiest_link(self) -> Use | None:
        """The channel with messages of the pipeline on it for the longest; None where nothing is sent."""
        cluster, devices = self.plan.cluster, self.plan.devices
        times: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        for span in self.timeline.spans:
            if span.lane == "send":
                for channel in cluster.route(devices[span.rank], devices[span.what.peer]):
                    times[channel].append((span.start, span.end))
        if not times:
            return None
        in_use = {channel: _covered(spans) for channel, spans in times.items()}
        channel = max(in_use, key=in_use.__getitem__)
        return Use(f"the link from {' to '.join(cluster.channel_ends(channel))}", in_use[channel])


def bottleneck(step: Step) -> Reason:
    """The resource that the step is longest in use of: a stage, a link, or sums of gradients that all wait for."""
    link, sums = step.busiest_link, step.waits["gradient sums"]
    if sums > max(step.compute, link.seconds if link else 0.0):
        return Reason("gradient sums", Use(f"waiting for gradient sums, {step.busiest_stage}", sums).of(step.seconds))
    if link is not None and link.seconds > step.compute:
        return Reason("link", link.of(step.seconds))
    return Reason("compute", Use(f"computing, {step.busiest_stage}", step.compute).of(step.seconds))


def why_slower(rival: Step, best: Step) -> Reason:
    """The one largest difference between the two, as a sentence about `rival`."""
    lost = rival.seconds - best.seconds
    if lost <= _SAME * best.seconds:
        return Reason("nothing", "as fast" if lost > -_SAME * best.seconds else "faster")
    more: dict[Cause, float] = {
        "compute": rival.compute - best.compute,
        "bubble": rival.bubble - best.bubble,
        **{cause: rival.waits[cause] - best.waits[cause] for cause in ("messages", "gradient sums")},
    }
    cause = max(more, key=more.__getitem__)
    if cause == "bubble" and rival.busiest_link is not None and rival.busiest_link.seconds > rival.compute:
        cause = "link"
    return Reason(cause, _told(cause, rival, best))


def _told(cause: Cause, rival: Step, best: Step) -> str:
    if cause == "link":
        link, other = rival.busiest_link, best.busiest_link
        assert link is not None
        return f"its busiest link holds it up ({link.what} {_against(link.seconds, other.seconds if other else 0.0)})"
    if cause == "compute":
        return f"its slowest stage computes longer ({rival.busiest_stage}: {_against(rival.compute, best.compute)})"
    if cause == "bubble":
        return (
            f"it stands idle longer ({rival.busiest_stage}: {_against(rival.bubble, best.bubble)}), with "
            f"{rival.plan.micro_batches} micro-batches to fill {len(rival.plan.positions)} positions"
        )
    what = "gradient sums" if cause == "gradient sums" else "messages"
    waits = _against(rival.waits[cause], best.waits[cause])
    return f"it waits longer for {what} that nothing hides ({rival.busiest_stage}: {waits})"


def too_large(plan: Plan, memory: Iterable[RankMemory]) -> Reason | None:
    """Where a plan's memory runs out by the most, and by how much; None where it fits."""
    over = [
        (use.peak - plan.cluster.devices[device].memory_bytes, device)
        for device, use in zip(plan.devices, memory, strict=True)
    ]
    missing, device = max(over)
    if missing <= 0:
        return None
    found = plan.cluster.devices[device]
    return Reason(
        "memory",
        f"does not fit in memory: {format_bytes(missing)} too much for the {format_bytes(found.memory_bytes)} of "
        f"{found.name}",
    )


def _against(seconds: float, other: float) -> str:
    return f"{format_seconds(seconds)} against {format_seconds(max(other, 0.0))}"


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of time spans."""
    total, until = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
