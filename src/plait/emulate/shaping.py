"""Link rates: a token bucket (tbf) at either end of every wire, one for each direction.

Bandwidth in Plait is what messages get, so the bucket is filled faster by the share of headers. Its burst is small, for
a large one would let whole messages pass unshaped; the queue holds more than all senders together may have under way,
so that nothing is ever dropped. What one connection has under way (its window) is a few milliseconds of the slowest
wire: enough that no wire is idle while a process wakes up, and little enough that a small message behind a large one
does not wait for much of it, as it would not between real hosts.
"""

from collections.abc import Iterable
from dataclasses import dataclass

ETHERNET, IP_AND_TCP = 14, 52  # bytes of headers; TCP with time stamps
_WINDOW_SECONDS, _SMALLEST_WINDOW, _LARGEST_WINDOW = 5e-3, 1 << 16, 1 << 19
_BURST_SECONDS = 2e-4  # timers are late by some of this
SMALLEST_MTU, LARGEST_MTU = 576, 9000


@dataclass(frozen=True)
class Shape:
    """One direction of one wire, in bytes per second of payload."""

    bandwidth: float
    mtu: int

    @property
    def rate(self) -> float:
        """Bytes per second with headers."""
        return self.bandwidth / payload_share(self.mtu)

    def qdisc(self, interface: str, most_under_way: int) -> str:
        """The line for `tc -batch`; `most_under_way` bytes may come to the queue before any of them leaves."""
        burst = max(2 * (self.mtu + ETHERNET), int(self.rate * _BURST_SECONDS))
        limit = burst + most_under_way
        return f"qdisc replace dev {interface} root tbf rate {round(8 * self.rate)}bit burst {burst} limit {limit}"


def window(bandwidths: Iterable[float]) -> int:
    """The most bytes a connection has under way on wires of these bandwidths.

    >>> window([62.5e6, 20e6]), window([62.5e6]), window([2e6])
    (100000, 312500, 65536)
    """
    return min(max(int(min(bandwidths) * _WINDOW_SECONDS), _SMALLEST_WINDOW), _LARGEST_WINDOW)


def payload_share(mtu: int) -> float:
    """
    >>> round(payload_share(1500), 3), round(payload_share(9000), 3)
    (0.956, 0.993)
    """
    return (mtu - IP_AND_TCP) / (mtu + ETHERNET)


def suitable_mtu(slowest: float, *, packet_seconds: float = 6e-4) -> int:
    """Large packets spare the processor and have few answers, which take 2 % of a wire used both ways at 2,000 bytes;
    but one must not keep the slowest wire busy for long.

    >>> suitable_mtu(125e6), suitable_mtu(5e6), suitable_mtu(1e5)
    (9000, 2999, 576)
    """
    return min(max(int(slowest * packet_seconds), SMALLEST_MTU), LARGEST_MTU)
