"""Packets made wrong on purpose, for tests."""

from dataclasses import dataclass

from plait.errors import PlaitError
from plait.switch.native import FaultRates


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Shares of packets that the switch loses and doubles (in both directions) and takes out of order."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder"):
            if not 0 <= (share := getattr(self, name)) < 1:
                raise PlaitError(f"a {name} of {share} is not a share of packets: give a number from 0 to below 1.")

    def rates(self) -> FaultRates:
        return FaultRates(self.seed, round(self.loss * 1e6), round(self.duplicate * 1e6), round(self.reorder * 1e6))
