"""The noun `Timeline`: who did what when. Simulated, emulated and real runs all end in one of these."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from plait.program import COMPUTE, Instruction, parse_instruction
from plait.program.garbage import no_collection


class Span(NamedTuple):
    """One thing a rank did. `lane` is compute, wait, send or reduce; times in seconds from the step's start."""

    rank: int
    lane: str
    what: Instruction
    start: float
    end: float

    @property
    def label(self) -> str:
        """`1F0` for a computation, in the schedules' notation; else the instruction's text."""
        if self.lane == "compute" and self.what.op in COMPUTE:
            return f"{self.what.stage}{self.what.op}{self.what.micro_batch}"
        return str(self.what._replace(inside=False))


@dataclass(frozen=True)
class RankSummary:
    """Where one rank's step went, in seconds. Exposed communication is part of the idle time."""

    busy: float
    exposed_communication: float
    bubble: float


Record = tuple[int, str, Instruction, float, float]  # the fields of a `Span`; a span is one


@dataclass(frozen=True)
class Timeline:
    """One step. `source` is "simulated", "emulated" or "measured"; `records` are its spans, or tuples of their fields.

    A plain tuple takes a quarter of the time of a span, and few timelines of a search are ever looked at.
    """

    source: str
    num_ranks: int
    records: tuple[Record, ...]
    step_seconds: float

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        with no_collection():
            return tuple(map(Span._make, self.records))

    @cached_property
    def ranks(self) -> tuple[RankSummary, ...]:
        busy, exposed = [0.0] * self.num_ranks, [0.0] * self.num_ranks
        for rank, lane, _, start, end in self.records:
            if lane == "compute":
                busy[rank] += end - start
            elif lane == "wait":
                exposed[rank] += end - start
        return tuple(
            RankSummary(b, min(e, self.step_seconds - b), max(self.step_seconds - b - e, 0.0))
            for b, e in zip(busy, exposed, strict=True)
        )

    def compute_order(self, rank: int) -> list[str]:
        """Labels of the rank's forwards and backwards in the order they began; of one done in parts, once."""
        computed = [Span._make(record) for record in self.records if record[:2] == (rank, "compute")]
        own = [span for span in computed if span.what.op in COMPUTE]
        return list(dict.fromkeys(span.label for span in sorted(own, key=lambda s: s.start)))

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "num_ranks": self.num_ranks,
            "step_seconds": self.step_seconds,
            "spans": [[rank, lane, str(what), start, end] for rank, lane, what, start, end in self.records],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Timeline":
        spans = tuple(Span(rank, lane, parse_instruction(text), *times) for rank, lane, text, *times in data["spans"])
        return cls(data["source"], data["num_ranks"], spans, data["step_seconds"])
