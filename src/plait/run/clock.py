"""When things happen on a rank's device.

A GPU works through what its host has asked for some time before, so the host's clock would tell when that was asked,
not when it was done. There a moment is an event on the GPU's stream, whose time is known once the GPU has come to it.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

Moment = Any  # seconds, or an event that will tell them


class Clock(Protocol):
    def now(self) -> Moment: ...

    def seconds(self, moments: Sequence[Moment]) -> list[float]:
        """The moments on the host's clock; waits until the device has come to the last of them."""
        ...


class HostClock:
    def now(self) -> Moment:
        return time.perf_counter()

    def seconds(self, moments: Sequence[Moment]) -> list[float]:
        return list(moments)


class CudaClock:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> Moment:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, moments: Sequence[Moment]) -> list[float]:
        end = self.now()
        end.synchronize()
        now = time.perf_counter()
        return [now - moment.elapsed_time(end) / 1e3 for moment in moments]


def clock_of(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else HostClock()
