"""The noun `Bound`: a step time that cannot be beaten, and the argument that says so."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """`name` is the argument (load, channel, memory, …), `where` the device, link or host it is about."""

    seconds: float
    name: str
    where: str = ""

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.seconds:.6g} s by {self.name}{place}"

    def later(self, seconds: float) -> "Bound":
        """The same argument, with that much more after it."""
        return Bound(self.seconds + seconds, self.name, self.where)


NOTHING = Bound(0.0, "nothing")


def strongest(*bounds: Bound) -> Bound:
    return max(bounds, key=lambda bound: bound.seconds)
