"""The noun `Costs`: what every atom takes on every kind of device, as affine functions of the rows.

`seconds(rows) = fixed + per_row * rows` fits what is measured at two sizes of micro-batch; memory is
counted the same way. Stage sums are differences of prefix sums, so a planner can ask for millions.
"""

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from plait.cost.memory import MemoryProfile
from plait.errors import PlaitError
from plait.graph.sharding import Collective, Sharding

Phase = Literal["forward", "backward", "input", "weight"]  # the last two are the parts of a split backward


@dataclass(frozen=True)
class AtomCost:
    """One atom on one kind of device. Seconds; bytes saved between its forward and its backward.

    `weight` is the part of the backward that can be put off: gradients of weights, which no other stage waits for.
    """

    forward_fixed: float
    forward_per_row: float
    backward_fixed: float
    backward_per_row: float
    saved_fixed: float
    saved_per_row: float
    weight_fixed: float = 0.0
    weight_per_row: float = 0.0

    def part(self, work: float, kept: float) -> "AtomCost":
        """On a device that does so much of its work, and saves so much of its bytes."""
        fields = asdict(self)
        return AtomCost(**{name: value * (kept if "saved" in name else work) for name, value in fields.items()})


@dataclass(frozen=True)
class OptimizerCost:
    """What the optimiser keeps per byte of parameters, and what a step over some of them takes."""

    state_bytes_per_byte: float
    seconds_per_byte: float
    seconds_fixed: float
    seconds_per_tensor: float = 0.0
    step_bytes_per_byte: float = 0.0  # what a step takes besides, for the largest parameter of those it updates

    def seconds(self, num_bytes: int, num_tensors: int) -> float:
        return self.seconds_fixed + self.seconds_per_tensor * num_tensors + self.seconds_per_byte * num_bytes


@dataclass(frozen=True)
class Costs:
    """Costs of one graph. `source` tells per device kind whether they were measured or computed.

    `shardings` are the ways in which devices may share atoms. One of a range of atoms holds for any part of it.
    """

    fingerprint: str
    atoms: Mapping[str, tuple[AtomCost, ...]]
    optimizer: Mapping[str, OptimizerCost]
    source: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, MemoryProfile] = field(default_factory=dict)
    shardings: tuple[Sharding, ...] = ()

    def sharding(self, start: int, end: int, degree: int, split: Mapping[str, int]) -> Sharding:
        """How a tensor group of `degree` devices that splits these parameters computes atoms `start..end-1`."""
        if not split:
            whole = (1.0,) * (end - start)
            return Sharding(start, end, degree, {}, (), whole, whole, {})
        known = [
            one
            for one in self.shardings
            if one.degree == degree and one.start <= start and end <= one.end and split.items() <= one.split.items()
        ]
        if not known:
            raise PlaitError(
                f"nothing is known of atoms {start} to {end} on tensor groups of {degree} that split {min(split)} as "
                "this plan does. Plan again, with the model at hand."
            )
        return min(known, key=lambda one: (one.end - one.start, len(one.split)))

    def on_group(self, start: int, end: int, degree: int, split: Mapping[str, int]) -> "Costs":
        """Costs of atoms `start..end-1` on the busiest device of a tensor group, without its exchanges."""
        if degree == 1:
            return self
        key = start, end, degree, tuple(sorted(split.items()))
        if key not in self._on_groups:
            self._on_groups[key] = self._scaled(self.sharding(start, end, degree, split))
        return self._on_groups[key]

    @cached_property
    def _on_groups(self) -> "dict[object, Costs]":
        return {}

    def _scaled(self, sharding: Sharding) -> "Costs":
        first, last = sharding.start, sharding.end
        atoms = {
            kind: (
                *own[:first],
                *(
                    atom.part(work, kept)
                    for atom, work, kept in zip(own[first:last], sharding.work, sharding.kept, strict=True)
                ),
                *own[last:],
            )
            for kind, own in self.atoms.items()
        }
        memory = {kind: profile.part(first, sharding.kept) for kind, profile in self.memory.items()}
        return replace(self, atoms=atoms, memory=memory, shardings=())

    @cached_property
    def _prefix(self) -> dict[tuple[str, str], list[float]]:
        fields = AtomCost.__dataclass_fields__
        return {
            (kind, name): [0.0, *itertools.accumulate(getattr(atom, name) for atom in atoms)]
            for kind, atoms in self.atoms.items()
            for name in fields
        }

    def _sum(self, kind: str, name: str, start: int, end: int) -> float:
        prefix = self._prefix[kind, name]
        return prefix[end] - prefix[start]

    def seconds(self, kind: str, phase: Phase, start: int, end: int, rows: int) -> float:
        """Time of one micro-batch of `rows` rows through atoms `start..end-1`; input and weight make a backward."""
        if phase in ("forward", "backward"):
            return self._line(kind, phase, start, end, rows)
        whole = self._line(kind, "backward", start, end, rows)
        weight = min(self._line(kind, "weight", start, end, rows), whole)
        return weight if phase == "weight" else whole - weight

    def _line(self, kind: str, name: str, start: int, end: int, rows: int) -> float:
        fixed = self._sum(kind, f"{name}_fixed", start, end)
        return max(fixed + self._sum(kind, f"{name}_per_row", start, end) * rows, 0.0)

    def saved_bytes(self, kind: str, start: int, end: int, rows: int) -> int:
        """Bytes a micro-batch keeps from its forward to its backward."""
        return int(self._line(kind, "saved", start, end, rows))

    def to_dict(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "atoms": {kind: [list(asdict(a).values()) for a in atoms] for kind, atoms in self.atoms.items()},
            "optimizer": {kind: list(asdict(o).values()) for kind, o in self.optimizer.items()},
            "source": dict(self.source),
            "memory": {kind: profile.to_dict() for kind, profile in self.memory.items()},
            "shardings": [asdict(sharding) for sharding in self.shardings],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Costs":
        return cls(
            fingerprint=data["fingerprint"],
            atoms={kind: tuple(AtomCost(*row) for row in rows) for kind, rows in data["atoms"].items()},
            optimizer={kind: OptimizerCost(*row) for kind, row in data["optimizer"].items()},
            source=data["source"],
            memory={kind: MemoryProfile.from_dict(profile) for kind, profile in data["memory"].items()},
            shardings=tuple(map(_sharding, data.get("shardings", ()))),
        )

    def joined(self, other: "Costs") -> "Costs":
        """Costs for the kinds of both."""
        assert self.fingerprint == other.fingerprint
        return Costs(
            self.fingerprint,
            {**self.atoms, **other.atoms},
            {**self.optimizer, **other.optimizer},
            {**self.source, **other.source},
            {**self.memory, **other.memory},
            self.shardings or other.shardings,
        )


def _sharding(data: Mapping[str, Any]) -> Sharding:
    lists = {"work": tuple(data["work"]), "kept": tuple(data["kept"])}
    return Sharding(**{**data, **lists, "collectives": tuple(Collective(**one) for one in data["collectives"])})
