"""Is the bed true? Before anything is measured the ranks sleep and send, and what they find is judged.

What a busy machine spoils is known here: timers that come late, and wires that are not served in time.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from pydantic import BaseModel, ConfigDict

from plait.emulate.dilation import Dilation
from plait.emulate.sleep import sleep_until
from plait.plan import Plan
from plait.program import Op, Program
from plait.run.transport import Transport

MOST_LATE, MOST_RATE_ERROR = 2e-3, 0.03
_SLEEPS, _SLEEP_SECONDS = 20, 5e-3
_PINGS = 9
_PROBE_SECONDS, _MOST_PROBES = 0.2, 4


class Probe(BaseModel):
    """A message between two ranks, and the bandwidth it should get."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    sender: int
    receiver: int
    bandwidth: float
    wires: int

    @property
    def num_bytes(self) -> int:
        return max(1, int(self.bandwidth * _PROBE_SECONDS))


@dataclass
class Findings:
    """`lateness` of sleeps in seconds, `rates` by probe as a share of what they should be, latency of one wire."""

    lateness: list[float] = field(default_factory=list)
    rates: dict[int, float] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)

    @property
    def late(self) -> float:
        """All but one sleep in twenty were no later."""
        return sorted(self.lateness)[int(len(self.lateness) * 0.95)] if self.lateness else 0.0

    @property
    def rate_error(self) -> float:
        return max((abs(rate - 1) for rate in self.rates.values()), default=0.0)

    @property
    def latency(self) -> float:
        return median(self.latencies) if self.latencies else 0.0

    def why_not_trusted(self) -> str:
        """Empty where the bed is true."""
        found = []
        if self.late > MOST_LATE:
            found.append(f"sleeping processes wake {self.late * 1e3:.1f} ms late (at most {MOST_LATE * 1e3:.0f} ms)")
        if self.rate_error > MOST_RATE_ERROR:
            found.append(f"a wire's rate is off by {self.rate_error:.1%} (at most {MOST_RATE_ERROR:.0%})")
        return " and ".join(found)


def choose_probes(program: Program, plan: Plan, dilation: Dilation) -> list[Probe]:
    """One for each bandwidth between ranks that talk to one another; of the slowest few."""
    pairs = {(r, ins.peer) for r, own in enumerate(program.ranks) for ins in own if ins.op is Op.SEND}
    pairs |= {pair for bucket in program.buckets for pair in zip(bucket.ranks, bucket.ranks[1:], strict=False)}
    found: dict[float, Probe] = {}
    for sender, receiver in sorted(pairs):
        a, b = plan.devices[sender], plan.devices[receiver]
        bandwidth = dilation.on_bed(plan.cluster.bandwidth(a, b))
        probe = Probe(sender=sender, receiver=receiver, bandwidth=bandwidth, wires=len(plan.cluster.route(a, b)))
        found.setdefault(bandwidth, probe)
    return [found[bandwidth] for bandwidth in sorted(found)[:_MOST_PROBES]]


def calibrate(transport: Transport, probes: Sequence[Probe]) -> Findings:
    """What one rank finds; all take part, and one probe is under way at a time."""
    everybody = tuple(range(transport.num_ranks))
    findings = Findings()
    meeting = torch.zeros(1, dtype=torch.float64)
    transport.all_reduce(meeting, everybody, "meeting").wait()
    for _ in range(_SLEEPS):
        findings.lateness.append(sleep_until(time.perf_counter() + _SLEEP_SECONDS))
    for number, probe in enumerate(probes):
        transport.all_reduce(meeting, everybody, "meeting").wait()
        if transport.rank == probe.sender:
            round_trip = median(_exchange(transport, probe.receiver, 1) for _ in range(_PINGS))
            seconds = _exchange(transport, probe.receiver, probe.num_bytes) - round_trip
            findings.rates[number] = probe.num_bytes / seconds / probe.bandwidth
            findings.latencies.append(round_trip / 2 / probe.wires)
        elif transport.rank == probe.receiver:
            for _ in range(_PINGS):
                _answer(transport, probe.sender, 1)
            _answer(transport, probe.sender, probe.num_bytes)
    return findings


def _exchange(transport: Transport, peer: int, num_bytes: int) -> float:
    """Seconds until a message of this size has been answered by one of a byte."""
    message, answer = torch.empty(num_bytes, dtype=torch.uint8), torch.empty(1, dtype=torch.uint8)
    start = time.perf_counter()
    sent, answered = transport.send(message, peer), transport.receive(answer, peer)
    answered.wait()
    seconds = time.perf_counter() - start
    sent.wait()
    return seconds


def _answer(transport: Transport, peer: int, num_bytes: int) -> None:
    transport.receive(torch.empty(num_bytes, dtype=torch.uint8), peer).wait()
    transport.send(torch.empty(1, dtype=torch.uint8), peer).wait()
