"""Where ranks find an aggregating switch, and under which name they meet there."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from plait.errors import PlaitError
from plait.switch import native
from plait.switch.worker import SwitchWorker
from plait.sync.aggregated import Contributor

ADDRESS_VARIABLE, KEY_VARIABLE = "PLAIT_SWITCH", "PLAIT_JOB_KEY"
OTHERS_SECONDS, SILENCE_SECONDS = 30.0, 5.0


@dataclass(frozen=True)
class SwitchPlace:
    """The control channel of a switch, its key, and a name for the job that all its ranks have in common.

    A sum falls back to the ring where other workers are `others_seconds` late, or the switch says nothing for
    `silence_seconds`.
    """

    address: tuple[str, int]
    key: str
    job: str
    others_seconds: float = OTHERS_SECONDS
    silence_seconds: float = SILENCE_SECONDS

    def join(self, job: str, worker: int, count: int) -> Contributor:
        return SwitchWorker(
            self.address,
            job=job,
            key=self.key,
            worker=worker,
            count=count,
            timeout_seconds=self.others_seconds,
            silence_seconds=self.silence_seconds,
        )

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> "SwitchPlace | None":
        """As PLAIT_SWITCH (HOST:PORT) and PLAIT_JOB_KEY say; the job is that of the ranks' rendezvous."""
        address = environment.get(ADDRESS_VARIABLE)
        if not address:
            return None
        job = f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"
        return cls(parse_address(address), environment.get(KEY_VARIABLE, ""), job)


def parse_address(text: str) -> tuple[str, int]:
    """
    >>> parse_address("10.0.0.1:7077")
    ('10.0.0.1', 7077)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise PlaitError(f"{text!r} is no address of a switch's control channel; write HOST:PORT, as 10.0.0.1:7077.")
    return host, int(port)


def lacking(place: SwitchPlace | None) -> str | None:
    """Why a switch cannot be used from here, and the fix; None where it can."""
    if place is None:
        return (
            f"no aggregating switch is named: set {ADDRESS_VARIABLE} to HOST:PORT of its control channel and "
            f"{KEY_VARIABLE} to its job key (`plait switch` starts one), or choose another way to sum"
        )
    if not place.key:
        return f"the switch at {place.address[0]}:{place.address[1]} needs a job key: set {KEY_VARIABLE}"
    return native.missing()
