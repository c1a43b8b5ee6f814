"""What a way to sum is to whoever carries it out."""

from typing import Protocol

from torch import Tensor

from plait.sync.collectives import Collectives, Group
from plait.sync.conveyor import Chunk
from plait.sync.hosts import Ranks


class Strategy(Protocol):
    """A way to sum over `ranks`; the same on each of them."""

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> Ranks: ...

    @property
    def num_phases(self) -> int: ...

    def groups(self) -> list[Group]:
        """The process groups it needs, the same list on every rank."""
        ...

    def chunks(self, collectives: Collectives, tensor: Tensor) -> list[Chunk]:
        """What this rank does so that `tensor` becomes the sum."""
        ...

    def close(self, collectives: Collectives) -> None:
        """There will be no more sums."""
        ...
