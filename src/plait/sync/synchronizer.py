"""The noun `Synchronizer`: sums over ranks, begun in one order on all of them, done while others compute."""

from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from plait.errors import PlaitError
from plait.sync.collectives import Collectives
from plait.sync.conveyor import Conveyor, Job
from plait.sync.errors import SumFailed
from plait.sync.ring import Ring
from plait.sync.strategy import Strategy

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Synchronizer:
    """Sums flat tensors over the ranks of a strategy, in place; with `mean`, their mean.

    All ranks begin their sums in the same order. Each sum goes on by itself, and its future is done when the tensor
    holds the sum, the same bits on every rank; or it fails, naming this rank and the sum, once a time limit of the
    collectives has passed.
    """

    def __init__(self, strategy: Strategy, collectives: Collectives, *, mean: bool = False) -> None:
        self.strategy = strategy
        self.collectives = collectives
        self.mean = mean
        self._conveyor = Conveyor(strategy.num_phases)
        self._begun = 0

    def all_reduce(self, flat: Tensor, name: str = "") -> "Future[Tensor]":
        """Begins a sum. Nobody may touch `flat` until the future is done; its value is `flat`."""
        check_tensor(flat)
        number, self._begun = self._begun, self._begun + 1
        ranks = self.strategy.ranks
        if len(ranks) == 1:
            promise = _future(flat)
            promise.set_result(flat)
            return promise
        what = f"{name or f'bucket {number}'} ({flat.numel():,} elements)"
        what += f" over ranks {_listed(ranks)} by {self.strategy.name}"
        promise = _future(flat)

        def done(error: Exception | None) -> None:
            if error is None:
                self._finish(flat)
                promise.set_result(flat)
            else:
                failed = SumFailed(self.collectives.rank, what, error)
                failed.__cause__ = error
                promise.set_exception(failed)  # type: ignore[arg-type]

        if isinstance(self.strategy, Ring):
            self.strategy.start(self.collectives, flat).future().add_done_callback(lambda summed: done(_error(summed)))
        else:
            self._conveyor.add(Job(self.strategy.chunks(self.collectives, flat), done))
        return promise

    def close(self) -> None:
        """There will be no more sums; all there were are done."""
        self.strategy.close(self.collectives)

    def _finish(self, flat: Tensor) -> None:
        if self.mean:
            flat.div_(len(self.strategy.ranks))


def check_tensor(flat: Tensor) -> None:
    """Raises PlaitError where it cannot be summed."""
    if flat.dim() != 1 or not flat.is_contiguous():
        raise PlaitError(
            f"all_reduce takes a flat contiguous tensor, not one of shape {tuple(flat.shape)} and strides "
            f"{flat.stride()}; give it `tensor.view(-1)` of a contiguous one."
        )
    if flat.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise PlaitError(f"all_reduce cannot sum {flat.dtype}; it takes {names}. Convert the tensor first.")


def _future(flat: Tensor) -> "Future[Tensor]":
    return Future(devices=[flat.device]) if flat.is_cuda else Future()


def _error(done: "Future[Any]") -> Exception | None:
    try:
        done.wait()
    except Exception as error:  # noqa: BLE001 - it is raised where the sum is waited for
        return error
    return None


def _listed(ranks: tuple[int, ...]) -> str:
    """
    >>> _listed((0, 1, 2, 3)), _listed((0, 2))
    ('0..3', '0, 2')
    """
    ordered = sorted(ranks)
    is_run = len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1))
    return f"{ordered[0]}..{ordered[-1]}" if is_run else ", ".join(map(str, ordered))
