"""What a stage needs for one micro-batch, for any range of atoms, from one profile of the whole model.

While atom `a` of a stage `s..e-1` runs, alive are

    saved(s) + … + saved(a-1) + forward(a)  (or backward(a) on the way back)

of the whole model's profile, but for what of it is another stage's or is counted as a message, and is taken off:

| in the profile                                      | in the stage                                               |
| --------------------------------------------------- | ---------------------------------------------------------- |
| a value made before `s`                             | received, held from before the forward until the backward  |
| the gradient of a value used at or after `e`        | arrives, held for the whole backward                       |
| a value sent, let go once nobody saves it           | held until the backward ends                               |

The gradient of a weight with several uses in the stage is added: the profile has each use's by itself.

Each is a number of bytes on a range of atoms. A question costs time in the length of the stage and the number of
values, in numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.cost import ALWAYS_HELD, NEVER_SAVED, AtomCost, AtomMemory, Costs, MemoryProfile
from plait.graph import Graph, Value

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MicroBatchMemory:
    """Bytes of one micro-batch on one stage.

    `kept` lies between its forward and its backward (saved tensors and values sent), without what was `received`.
    `forward` and `backward` are the most while they run, `kept` in them but `received` and the gradients that
    arrive (`arriving`) not. `input_gradients` are left when the backward has ended. Of a backward in two halves,
    `input_half` is the most while the first runs, and `weight_inputs` are kept from it for the second.
    """

    kept: int
    received: int
    arriving: int
    forward: int
    backward: int
    input_gradients: int
    sent: int
    input_half: int
    weight_inputs: int
    recompute: bool

    @property
    def waiting(self) -> int:
        """Between the forward and the backward. What was sent is there until it has left, also where it is not kept."""
        return self.kept + self.received + (self.sent if self.recompute else 0)


def _lines(source: Sequence[AtomCost | AtomMemory], name: str) -> Array:
    """Fixed and per-row parts of every atom."""
    return np.array([[getattr(atom, f"{name}_fixed"), getattr(atom, f"{name}_per_row")] for atom in source]).T


def _assumed(graph: Graph, atoms: Sequence[AtomCost]) -> MemoryProfile:
    """Where nothing but saved bytes is known: an atom saves what it makes, and needs no more but for gradients."""
    gradients = np.zeros((2, len(atoms) + 1))
    for value in graph.values:
        if value.requires_grad:
            part = int(value.batch_dim is not None)
            gradients[part, value.producer] += value.row_bytes
            gradients[part, value.consumers[-1] + 1] -= value.row_bytes
    alive = np.cumsum(gradients, axis=1)
    return MemoryProfile(
        tuple(
            AtomMemory(a.saved_fixed, a.saved_per_row, a.saved_fixed + fixed, a.saved_per_row + per_row)
            for a, fixed, per_row in zip(atoms, *alive[:, :-1], strict=True)
        ),
        {value.name: value.producer for value in graph.values},
    )


class StageMemory:
    """Answers for one graph on one kind of device."""

    def __init__(self, graph: Graph, costs: Costs, kind: str) -> None:
        atoms = costs.atoms[kind]
        profile = costs.memory.get(kind) or _assumed(graph, atoms)
        self._saved = _lines(atoms, "saved")
        self._profiles = {
            coupled: (_lines(found, "forward"), _lines(found, "backward"))
            for coupled, found in ((False, profile.atoms), (True, profile.coupled or profile.atoms))
        }
        self._weight_inputs = _lines(profile.atoms, "weight_inputs")
        self._values = [(value, profile.savers[value.name]) for value in graph.values]
        self._tied = [p for p in graph.parameters if p.trainable and len(p.atoms) > 1]
        self._producer = np.array([v.producer for v in graph.values], dtype=np.int64)
        self._last = np.array([v.consumers[-1] for v in graph.values], dtype=np.int64)
        self._by_rows: dict[tuple[int, bool], tuple[Array, Array, Array]] = {}

    def of(
        self, start: int, end: int, rows: int, *, recompute: bool = False, coupled: bool = False
    ) -> MicroBatchMemory:
        """Memory of a micro-batch of `rows` rows on atoms `start..end-1`."""
        before, forward, backward = self._at(rows, coupled)
        saved = before[start : end + 1] - before[start]
        going, coming = saved[:-1] + forward[start:end], saved[:-1] + backward[start:end]
        kept = float(saved[-1])
        received = arriving = sent = returned = 0
        for value, saver in self._crossing(start):
            size = value.num_bytes(rows)
            if saver >= start:
                until = value.consumers[-1] + 1 if saver == NEVER_SAVED else end
                going[: max(until - start, 0)] -= size
            if start <= saver < end:
                coming[saver - start :] -= size
                kept -= size
            if any(start <= consumer < end for consumer in value.consumers):
                received += size
                returned += size if value.requires_grad else 0
        for value, saver in self._crossing(end):
            size = value.num_bytes(rows)
            if value.producer >= start:
                sent += size
                if saver >= end:
                    kept += size
                if saver != ALWAYS_HELD:
                    coming[: max(min(saver, end) - start, 0)] += size
            if value.requires_grad:
                coming[self._gradient_since(value, start, end) :] -= size
                arriving += size if value.producer >= start else 0
        self._add_tied(coming, saved, start, end)
        most = float(going.max(initial=0.0))
        awaited = self._weight_inputs[0, start:end] + self._weight_inputs[1, start:end] * rows
        later = awaited.sum() - np.cumsum(awaited)  # of the atoms behind each
        return MicroBatchMemory(
            kept=0 if recompute else int(kept),
            received=received,
            arriving=arriving,
            forward=int(most),
            backward=int(max(coming.max(initial=0.0), most if recompute else 0.0)),
            input_gradients=returned,
            sent=sent,
            input_half=int(max((coming + later).max(initial=0.0), most if recompute else 0.0)),
            weight_inputs=int(awaited.sum()),
            recompute=recompute,
        )

    def peak(
        self, start: int, end: int, rows: int, in_flight: int, *, recompute: bool = False, coupled: bool = False
    ) -> int:
        """The most that `in_flight` micro-batches need at once, one of them in its forward or backward.

        Besides, as in any schedule: what comes for the next one is posted, what the last one gives back is leaving.
        """
        one = self.of(start, end, rows, recompute=recompute, coupled=coupled)
        waiting = (in_flight - 1) * one.waiting
        messages = 2 * one.received + one.arriving + one.input_gradients
        return waiting + messages + (one.sent if recompute else 0) + max(one.forward, one.backward)

    def _at(self, rows: int, coupled: bool) -> tuple[Array, Array, Array]:
        """What the atoms before each have saved, and the most while each runs, forward and backward."""
        if (rows, coupled) not in self._by_rows:
            lines = (self._saved, *self._profiles[coupled])
            saved, forward, backward = (line[0] + line[1] * rows for line in lines)
            self._by_rows[rows, coupled] = np.concatenate([[0.0], np.cumsum(saved)]), forward, backward
        return self._by_rows[rows, coupled]

    def _crossing(self, position: int) -> list[tuple[Value, int]]:
        """Values alive across the cut before `position`, each with the atom that saves it first."""
        alive = np.flatnonzero((self._producer < position) & (self._last >= position))
        return [self._values[index] for index in alive]

    @staticmethod
    def _gradient_since(value: Value, start: int, end: int) -> int:
        """From which atom of the stage on the profile has a gradient of `value` that comes from later stages."""
        users = [consumer for consumer in value.consumers if consumer < end]
        if not users:
            return max(value.producer - start, 0)
        own = value.producer >= start  # then what arrives and what is made here are two tensors at the last user
        return max(users[-1] - start + own, 0)

    def _add_tied(self, coming: Array, saved: Array, start: int, end: int) -> None:
        """A weight used several times here: the gradient of one use waits for that of the next, to be added to it."""
        for parameter in self._tied:
            own = [atom - start for atom in parameter.atoms if start <= atom < end]
            if len(own) > 1:
                coming[own[0] : own[-1]] += parameter.num_bytes
                for atom in own[:-1]:
                    coming[atom] = max(coming[atom], saved[atom] + 3 * parameter.num_bytes)
