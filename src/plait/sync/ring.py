"""A flat ring: an all-reduce as torch.distributed does it, round the hosts one after the other.

2 (n-1)/n S/B of S bytes on n ranks, B the slowest link of the ring.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from plait.sync.collectives import Collectives, Group, Sum
from plait.sync.conveyor import Chunk
from plait.sync.hosts import Ranks, ring_order


@dataclass(frozen=True)
class Ring:
    hosts: Sequence[Ranks]
    name: str = "ring"
    num_phases: int = 1

    @property
    def ranks(self) -> Ranks:
        return ring_order(self.hosts)

    def groups(self) -> list[Group]:
        return [("gradients", self.ranks)]

    def start(self, collectives: Collectives, tensor: Tensor) -> Sum:
        """It has one phase, which can begin at once: torch.distributed keeps sums in order by itself."""
        return collectives.all_reduce(tensor, self.ranks)

    def chunks(self, collectives: Collectives, tensor: Tensor) -> list[Chunk]:
        def pass_round() -> None:
            self.start(collectives, tensor).wait()

        return [[pass_round]]

    def close(self, collectives: Collectives) -> None:
        del collectives
