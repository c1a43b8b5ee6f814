"""Ranks as threads of one process: the executor's transport for tests that need many small runs."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

LIMIT = 60.0


class World:
    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.lock = threading.Lock()
        self.compute = threading.Lock()  # PyTorch's generator is one per process
        self.sent: dict[Any, list[Tensor]] = {}
        self.gathers: dict[Any, dict[int, Tensor]] = {}
        self.changed = threading.Condition(self.lock)


class _Wait:
    def __init__(self, wait: Callable[[], None], done: Callable[[], bool] = lambda: True) -> None:
        self.wait = wait
        self.done = done

    def future(self) -> "Future[None]":
        """Done by itself, on a thread of its own."""
        promise: Future[None] = Future()

        def work() -> None:
            try:
                self.wait()
                promise.set_result(None)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                promise.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return promise


class ThreadTransport:
    """One rank's end. Receives match sends in the order in which they are posted, whenever they are waited for."""

    def __init__(self, world: World, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.num_ranks = world.num_ranks
        self.counts: dict[Any, int] = {}

    def send(self, tensor: Tensor, peer: int, group: Any = None) -> _Wait:
        with self.world.changed:
            self.world.sent.setdefault((self.rank, peer, group), []).append(tensor.detach().clone())
            self.world.changed.notify_all()
        return _Wait(lambda: None)

    def receive(self, tensor: Tensor, peer: int, group: Any = None) -> _Wait:
        number = self.counts.get((peer, group), 0)
        self.counts[peer, group] = number + 1

        def wait() -> None:
            with self.world.changed:
                sent = self.world.sent.setdefault((peer, self.rank, group), [])
                assert self.world.changed.wait_for(lambda: len(sent) > number, LIMIT), "nothing arrives"
                arrived = sent[number]
            assert arrived.shape == tensor.shape and arrived.dtype == tensor.dtype
            with torch.no_grad():
                tensor.copy_(arrived)

        return _Wait(wait)

    send_to, receive_from = send, receive

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...], purpose: str = "gradients") -> _Wait:
        key = self._key(purpose, ranks)
        self._give(key, tensor)

        def wait() -> None:
            parts = self._take(key, ranks)
            with torch.no_grad():
                tensor.copy_(torch.stack([parts[rank] for rank in ranks]).sum(0))

        return _Wait(wait, lambda: len(self.world.gathers[key]) == len(ranks))

    def all_gather(self, tensor: Tensor, ranks: tuple[int, ...], purpose: str = "exchange") -> list[Tensor]:
        key = self._key(purpose, ranks)
        self._give(key, tensor)
        parts = self._take(key, ranks)
        return [parts[rank] for rank in ranks]

    def broadcast(self, tensor: Tensor, ranks: tuple[int, ...], root: int, purpose: str = "broadcast") -> _Wait:
        key = self._key(purpose, ranks)
        self._give(key, tensor)

        def wait() -> None:
            with torch.no_grad():
                tensor.copy_(self._take(key, ranks)[root])

        return _Wait(wait)

    def _key(self, purpose: str, ranks: tuple[int, ...]) -> Any:
        number = self.counts.get((purpose, ranks), 0)
        self.counts[purpose, ranks] = number + 1
        return purpose, ranks, number

    def _give(self, key: Any, tensor: Tensor) -> None:
        with self.world.changed:
            self.world.gathers.setdefault(key, {})[self.rank] = tensor.detach().clone()
            self.world.changed.notify_all()

    def _take(self, key: Any, ranks: tuple[int, ...]) -> dict[int, Tensor]:
        with self.world.changed:
            assert self.world.changed.wait_for(lambda: len(self.world.gathers[key]) == len(ranks), LIMIT)
            return self.world.gathers[key]


def on_threads(num_ranks: int, work: Callable[[ThreadTransport], Any]) -> list[Any]:
    """Runs `work` once per rank and returns what each returned; the first error is raised."""
    world = World(num_ranks)
    results: list[Any] = [None] * num_ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadTransport(world, rank))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that asked
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT if not errors else 1.0)
    if errors:
        raise errors[0]
    assert all(not thread.is_alive() for thread in threads), "a rank hangs"
    return results
