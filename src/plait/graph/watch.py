"""Moments inside a stage's forward: before a parameter is first read, and once a value for another stage is there.

Stage code that is watched calls these functions at them. They do nothing but ask the `Watch`, so code that nobody
listens to loses a fraction of a microsecond at each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Watch:
    """What to do at the moments of the next forward: before a parameter is read, by its name, and with a value."""

    reads: dict[str, Callable[[], None]] = field(default_factory=dict)
    values: Mapping[str, Callable[[Tensor], None]] = field(default_factory=dict)


def about_to_read(watch: Watch, names: Sequence[str]) -> None:
    if watch.reads:
        for name in names:
            call = watch.reads.pop(name, None)
            if call is not None:
                call()


def made(watch: Watch, name: str, value: Tensor) -> None:
    if watch.values and name in watch.values:
        watch.values[name](value)
