"""A run seen from where it was started: settings out to the ranks, progress and results back."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from plait.plan import Plan
from plait.program import Program, parse_instruction
from plait.run.control import Message
from plait.run.launch import launch
from plait.run.measured import measured_timeline
from plait.run.settings import Settings
from plait.run.sums import check_sums
from plait.simulate import Span, Timeline

_WARM_UP = 2  # first steps allocate and build connections; they are not what a step takes


@dataclass
class RunRecord:
    """What a run did, filled as messages arrive. The first `warm_up` steps are left out where there are enough."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    memory_bytes: dict[int, int] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    spans: dict[int, dict[int, list[Span]]] = field(default_factory=dict)  # step -> rank -> spans
    warm_up: int = _WARM_UP

    def take(self, rank: int, message: Message) -> None:
        if message["type"] == "step":
            self.losses.append(message["loss"])
            self.seconds.append(message["seconds"])
            self.memory_bytes[rank] = message["memory_bytes"]
        elif message["type"] == "rank":
            self.memory_bytes[rank] = message["memory_bytes"]
            self.hosts[rank] = message["host"]
            for step, spans in message["spans"].items():
                parsed = [Span(r, lane, parse_instruction(text), start, end) for r, lane, text, start, end in spans]
                self.spans.setdefault(int(step), {})[rank] = parsed

    @property
    def settled_seconds(self) -> list[float]:
        return self.seconds[self.warm_up :] if len(self.seconds) > 2 * self.warm_up else self.seconds

    @property
    def step_seconds(self) -> float:
        return median(self.settled_seconds)

    def timeline(self, program: Program) -> Timeline | None:
        """The traced step whose time is nearest to the median."""
        whole = [step for step, ranks in self.spans.items() if len(ranks) == len(program.ranks)]
        if not whole:
            return None
        step = min(whole, key=lambda s: abs(self.seconds[s] - self.step_seconds))
        return measured_timeline(program, self.spans[step], same_clock=len(set(self.hosts.values())) == 1)

    def save(self, path: Path) -> None:
        content = {
            "format": "plait-run",
            "version": 1,
            "losses": self.losses,
            "seconds": self.seconds,
            "memory_bytes": self.memory_bytes,
        }
        path.write_text(json.dumps(content, indent=2))


def run_plan(
    settings: Settings, plan: Plan, out: Path, *, on_step: Callable[[RunRecord], None] = lambda record: None
) -> RunRecord:
    """Runs `settings` over the plan's ranks on this machine; raises RunFailed when a rank fails."""
    check_sums(plan)  # before ranks are started, of which each would say it
    record = RunRecord()

    def on_message(rank: int, message: Message) -> None:
        record.take(rank, message)
        if message["type"] == "step":
            on_step(record)

    path = out / "settings.json"
    settings.write(path)
    launch(["worker", str(path)], plan.num_ranks, logs=out / "logs", on_message=on_message)
    return record
