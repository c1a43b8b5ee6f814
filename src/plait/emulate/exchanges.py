"""What the devices of a tensor group exchange inside their computations on the bed: which bytes, and when."""

from collections.abc import Iterator, Sequence

import torch
from pydantic import BaseModel, ConfigDict

from plait.cost import Phase, of_atoms
from plait.emulate.dilation import shrunk
from plait.program import Op
from plait.run.tensor import PURPOSE
from plait.run.transport import Transport
from plait.simulate.times import Times

_NUMBER_BYTES = 4


class Exchange(BaseModel):
    """After so many seconds of computing, in the cluster's own bytes: those of the whole tensor."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    after: float
    kind: str
    num_bytes: float


def forward_exchanges(times: Times, rank: int, stage: int, rows: int) -> list[Exchange]:
    """`times` are those of computing alone. Each comes when its atom is done."""
    return list(_forward(times, rank, stage, rows))


def backward_exchanges(times: Times, rank: int, stage: int, rows: int, op: Op) -> list[Exchange]:
    """Of a backward in one piece (B), or of its first half (I); with those of the forward where it is run again."""
    table, phase = times.program.stages[stage], _phase(op)
    again = list(_forward(times, rank, stage, rows)) if table.recompute else []
    before = times.phase(rank, stage, "forward", table.start, table.end, rows) if table.recompute else 0.0
    return again + [
        Exchange(
            after=before + times.phase(rank, stage, phase, c.atom, table.end, rows),
            kind=c.kind,
            num_bytes=c.bytes_per_row * rows + c.fixed_bytes,
        )
        for c in of_atoms(times.sharding_of(stage), "backward", table.start, table.end)
    ]


def _forward(times: Times, rank: int, stage: int, rows: int) -> Iterator[Exchange]:
    table = times.program.stages[stage]
    for c in of_atoms(times.sharding_of(stage), "forward", table.start, table.end):
        done = times.phase(rank, stage, "forward", table.start, c.atom + 1, rows)
        yield Exchange(after=done, kind=c.kind, num_bytes=c.bytes_per_row * rows + c.fixed_bytes)


def _phase(op: Op) -> Phase:
    return "input" if op is Op.I else "backward"


class GroupExchange:
    """A rank's way to do them: collectives of the shrunk tensors over its group."""

    def __init__(self, transport: Transport, ranks: Sequence[int], payload: float) -> None:
        self._transport, self._ranks, self._payload = transport, tuple(ranks), payload

    def __call__(self, exchange: Exchange) -> None:
        numbers = max(1, shrunk(round(exchange.num_bytes), self._payload) // _NUMBER_BYTES)
        if exchange.kind == "all-reduce":
            self._transport.all_reduce(torch.zeros(numbers), self._ranks, PURPOSE).wait()
        else:  # a reduce-scatter moves as much as an all-gather
            self._transport.all_gather(torch.zeros(max(1, numbers // len(self._ranks))), self._ranks, PURPOSE)
