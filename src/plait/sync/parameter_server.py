"""Servers collect everybody's numbers, sum them, and give the sum to all.

S bytes of n workers come in and go out at each of k servers' links: n S/(k B), for both directions are used at once:
while the sum of one chunk goes out, the next chunk comes in. A server may be one of the workers, and then keeps its own
numbers where they are, or apart from them; then it `serves`, and the first worker announces each sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event

import torch
from torch import Tensor

from plait.sync.chunks import CHUNK_BYTES, chunks_of
from plait.sync.collectives import Collectives, Group, Pending
from plait.sync.conveyor import Chunk, Conveyor, Job
from plait.sync.errors import SumFailed
from plait.sync.hosts import Ranks
from plait.sync.rounds import direction, directions

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_NO_MORE = -1


@dataclass(frozen=True)
class ParameterServer:
    """`servers` has the rank of each shard's server."""

    ranks: Ranks
    servers: Ranks
    chunk_bytes: int = CHUNK_BYTES
    name: str = "parameter-server"
    num_phases: int = 2

    def groups(self) -> list[Group]:
        return [*directions("collect", self._everybody), *directions("give", self._everybody)]

    @property
    def _everybody(self) -> Ranks:
        return tuple(sorted({*self.ranks, *self.servers}))

    def _send(self, collectives: Collectives, what: str, tensor: Tensor, peer: int) -> Pending:
        group = direction(what, self._everybody, collectives.rank, peer)
        return collectives.send_to(tensor, peer, group)

    def _receive(self, collectives: Collectives, what: str, tensor: Tensor, peer: int) -> Pending:
        group = direction(what, self._everybody, peer, collectives.rank)
        return collectives.receive_from(tensor, peer, group)

    @property
    def is_apart(self) -> bool:
        return not set(self.servers) <= set(self.ranks)

    def chunks(self, collectives: Collectives, tensor: Tensor) -> list[Chunk]:
        shards = [chunks_of(shard, self.chunk_bytes) for shard in tensor.tensor_split(len(self.servers))]
        rows = [[pieces[n] if n < len(pieces) else None for pieces in shards] for n in range(max(map(len, shards)))]
        found: list[Chunk] = [
            (partial(self._collect, collectives, pieces), partial(self._give, collectives, pieces)) for pieces in rows
        ]
        if self.is_apart and collectives.rank == self.ranks[0]:
            found.insert(0, (partial(self._announce, collectives, tensor), lambda: None))
        return found

    def _collect(self, collectives: Collectives, pieces: Sequence[Tensor | None]) -> None:
        """Every server gets its piece from all others; one that serves alone starts from nothing."""
        rank = collectives.rank
        pending: list[Pending] = []
        arriving: list[Tensor] = []
        for piece, server in zip(pieces, self.servers, strict=True):
            if piece is None or not piece.numel():
                continue
            if server == rank:
                workers = [worker for worker in self.ranks if worker != rank]
                arriving = [torch.empty_like(piece) for _ in workers]
                pending += [
                    self._receive(collectives, "collect", into, worker)
                    for into, worker in zip(arriving, workers, strict=True)
                ]
            elif rank in self.ranks:
                pending.append(self._send(collectives, "collect", piece, server))
        for message in pending:
            message.wait()
        if arriving:
            own = pieces[self.servers.index(rank)]
            assert own is not None
            if rank not in self.ranks:
                own.zero_()
            for more in arriving:
                own.add_(more)

    def _give(self, collectives: Collectives, pieces: Sequence[Tensor | None]) -> None:
        rank = collectives.rank
        pending: list[Pending] = []
        for piece, server in zip(pieces, self.servers, strict=True):
            if piece is None or not piece.numel():
                continue
            if server == rank:
                pending += [self._send(collectives, "give", piece, worker) for worker in self.ranks if worker != rank]
            elif rank in self.ranks:
                pending.append(self._receive(collectives, "give", piece, server))
        for message in pending:
            message.wait()

    # Servers apart

    def _announce(self, collectives: Collectives, tensor: Tensor) -> None:
        self._tell(collectives, tensor.numel(), _DTYPES.index(tensor.dtype))

    def close(self, collectives: Collectives) -> None:
        """There will be no more sums: servers that stand apart end. The first worker tells them."""
        if self.is_apart and collectives.rank == self.ranks[0]:
            self._tell(collectives, _NO_MORE, 0)

    def _tell(self, collectives: Collectives, *numbers: int) -> None:
        header = torch.tensor(numbers)
        for message in [self._send(collectives, "collect", header, server) for server in self.servers]:
            message.wait()

    def serve(self, collectives: Collectives) -> int:
        """What a server apart does until it is dismissed; gives how many sums it has made."""
        conveyor, header, number = Conveyor(self.num_phases), torch.zeros(2, dtype=torch.int64), 0
        while True:
            try:
                self._receive(collectives, "collect", header, self.ranks[0]).wait()
            except RuntimeError as error:
                raise SumFailed(collectives.rank, f"anything more after {number} sums as a server", error) from error
            size, dtype = header.tolist()
            if size == _NO_MORE:
                return number
            over = Event()
            conveyor.add(
                Job(
                    self.chunks(collectives, torch.empty(size, dtype=_DTYPES[dtype])),
                    lambda error, over=over: over.set(),  # type: ignore[misc]
                )
            )
            over.wait()  # every message in it has a time limit
            if conveyor.failure is not None:
                what = f"bucket {number} ({size:,} elements) as a server"
                raise SumFailed(collectives.rank, what, conveyor.failure) from conveyor.failure
            number += 1
