"""What a cluster is made of: device kinds, devices, hosts and links. Plain data, SI units."""

import math
from dataclasses import dataclass
from typing import Literal

from plait.errors import PlaitError


@dataclass(frozen=True)
class DeviceKind:
    """A type of processor, from the presets or from a cluster file.

    `flops_per_second` is the dense peak (no structured sparsity) in `precision`, the one training would
    use on it; `efficiency` is the share of that peak which real layers are taken to reach until a profile
    says better. `memory_bandwidth` is in bytes per second.
    """

    name: str
    flops_per_second: float
    memory_bandwidth: float
    memory_bytes: int
    efficiency: float
    backend: Literal["cpu", "cuda"]
    precision: Literal["fp32", "tf32", "fp16", "bf16"] = "fp16"

    def __post_init__(self) -> None:
        what = f'device kind "{self.name}"'
        _above_zero(self.flops_per_second, f"flops_per_second of {what}")
        _above_zero(self.memory_bandwidth, f"memory_bandwidth of {what}")
        _above_zero(self.memory_bytes, f"memory_bytes of {what}")
        if not 0 < self.efficiency <= 1:
            raise PlaitError(
                f"efficiency of {what} is {self.efficiency}; it is a share of the peak, above 0 and at most "
                "1: write e.g. 0.45"
            )


@dataclass(frozen=True)
class Device:
    """One processor of a host. `speed` multiplies its kind's speed: 0.9 is a card that runs 10 % slow."""

    name: str
    host: str
    kind: DeviceKind
    memory_bytes: int
    speed: float = 1.0

    def __post_init__(self) -> None:
        _above_zero(self.memory_bytes, f'memory_bytes of device "{self.name}"')
        _above_zero(self.speed, f'speed of device "{self.name}"')

    @property
    def sustained_flops_per_second(self) -> float:
        """What real layers are taken to reach on this device."""
        return self.kind.flops_per_second * self.kind.efficiency * self.speed


@dataclass(frozen=True)
class Host:
    """A machine. `compute_slots` is how many of its devices can compute at once (None: all of them)."""

    name: str
    compute_slots: int | None = None

    def __post_init__(self) -> None:
        if self.compute_slots is not None and self.compute_slots < 1:
            raise PlaitError(
                f'compute_slots of host "{self.name}" is {self.compute_slots}; at least one device must be '
                "able to compute: write 1 or more, or leave it out when all devices compute at once"
            )


@dataclass(frozen=True)
class Link:
    """A full-duplex cable between two vertices (devices, hosts or switches).

    `bandwidth` is bytes per second in each direction, `latency` seconds for the first byte.
    """

    a: str
    b: str
    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        what = f'the link between "{self.a}" and "{self.b}"'
        if self.a == self.b:
            raise PlaitError(f"{what} joins a vertex to itself; name two different ends, or remove it")
        _above_zero(self.bandwidth, f"bandwidth of {what}")
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise PlaitError(f"latency of {what} is {self.latency}; it must be 0 or more seconds, e.g. 5e-6")


@dataclass(frozen=True)
class Aggregator:
    """A switch that sums packets as they pass.

    A worker has `slots` packets under way, of `payload_bytes` of gradients each (32 bits a number); `efficiency` is the
    share of a link's bandwidth that gradients get so, beside headers.
    """

    switch: str
    slots: int
    payload_bytes: int
    efficiency: float

    def __post_init__(self) -> None:
        what = f'aggregating switch "{self.switch}"'
        _above_zero(self.slots, f"slots of {what}")
        _above_zero(self.payload_bytes, f"payload_bytes of {what}")
        if not 0 < self.efficiency <= 1:
            raise PlaitError(
                f"efficiency of {what} is {self.efficiency}; it is a share of a link's bandwidth, above 0 and at most "
                "1: write e.g. 0.98"
            )


def _above_zero(value: float, what: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise PlaitError(f"{what} is {value}; it must be a finite number above 0: give what the hardware has")
