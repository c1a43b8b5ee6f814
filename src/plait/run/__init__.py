"""Running programs for real: executor, transport, trainer, checkpoints, launching."""

from plait.run.errors import BadBatch, RankFailure
from plait.run.reference import OneDevice
from plait.run.trainer import Trainer, parallelize

__all__ = ["BadBatch", "OneDevice", "RankFailure", "Trainer", "parallelize"]
