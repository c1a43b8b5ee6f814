"""A stand-in for an aggregating switch, which fails where and when a test says."""

import io
from collections.abc import Collection
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from plait.switch.errors import SwitchUnavailable

PATIENCE = timedelta(seconds=1.0)


class StandIn:
    """Workers of a job put their tensors in a store; each adds them up in one order. `calls_that_fail` count from 0."""

    def __init__(self, store: dist.Store, job: str, worker: int, count: int, calls_that_fail: Collection[int]) -> None:
        self._store, self._job, self._worker, self._count = store, job, worker, count
        self._fail = calls_that_fail
        self._calls = 0
        self.closed = False

    def all_reduce(self, tensor: Tensor) -> None:
        assert tensor.dtype == torch.float32 and tensor.is_contiguous() and not self.closed
        call, self._calls = self._calls, self._calls + 1
        if call in self._fail:
            raise SwitchUnavailable(f"worker {self._worker} was told to fail")
        buffer = io.BytesIO()
        torch.save(tensor, buffer)
        self._store.set(f"{self._job}/{call}/{self._worker}", buffer.getvalue())
        keys = [f"{self._job}/{call}/{worker}" for worker in range(self._count)]
        try:
            self._store.wait(keys, PATIENCE)
        except RuntimeError as error:
            raise SwitchUnavailable("not all workers came") from error
        parts = [torch.load(io.BytesIO(self._store.get(key)), weights_only=True).double() for key in keys]
        tensor.copy_(torch.stack(parts).sum(0))

    def close(self) -> None:
        self.closed = True
