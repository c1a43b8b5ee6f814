"""Failures while running: what every rank can be told about the one that caused them."""

import torch.distributed as dist

from plait.errors import PlaitError

_PEER_IS_GONE = ("Connection closed", "Connection reset", "Broken pipe", "Connection refused", "Timed out", "timed out")


class RankFailure(RuntimeError):
    """Something went wrong on one rank, at one instruction. The original error is the cause."""

    def __init__(self, rank: int, where: str, why: str, *, lost_peer: bool) -> None:
        self.rank = rank
        self.where = where
        self.why = why
        self.lost_peer = lost_peer  # a consequence of another rank's end rather than a cause
        super().__init__(f"rank {rank} failed {where}: {why}")


class BadBatch(PlaitError):
    """A batch that the plan cannot take."""


def is_lost_peer(error: BaseException) -> bool:
    """Does this error only say that another rank is gone?"""
    return isinstance(error, dist.DistError) or (
        isinstance(error, (RuntimeError, OSError)) and any(sign in str(error) for sign in _PEER_IS_GONE)
    )
