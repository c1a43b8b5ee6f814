"""What tests of the aggregating switch share."""

import threading
import time
from collections.abc import Callable
from typing import Any

from plait.switch.daemon import Switch
from plait.switch.worker import SwitchWorker

KEY = "a key for tests"


def on_all(count: int, what: Callable[[int], Any], *, seconds: float = 60.0) -> list[Any]:
    """What each of `count` threads returns, or raises."""
    found: list[Any] = [TimeoutError("still at it")] * count

    def run(number: int) -> None:
        try:
            found[number] = what(number)
        except Exception as error:  # noqa: BLE001 - handed to the test
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, limit - time.monotonic()))
    return found


def joined(switch: Switch, count: int, job: str = "job", **options: Any) -> list[SwitchWorker]:
    workers = on_all(count, lambda n: SwitchWorker(switch.address, job=job, key=KEY, worker=n, count=count, **options))
    for worker in workers:
        if isinstance(worker, Exception):
            raise worker
    return workers
