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

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.cost import ALWAYS_HELD, NEVER_SAVED, AtomCost, AtomMemory, Costs, GradientMemory, MemoryProfile, ValueMemory
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
        {value.name: ValueMemory(value.producer, value.consumers[-1]) for value in graph.values},
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
        self._values = [(value, profile.values[value.name]) for value in graph.values]
        self._sharers: dict[int, list[int]] = {}  # by memory of a gradient, the atoms of the values it belongs to
        for value, memory in self._values:
            for gradient in memory.gradients:
                if gradient.memory >= 0:
                    self._sharers.setdefault(gradient.memory, []).append(value.producer)
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
        for value, memory in self._crossing(start):
            size = value.num_bytes(rows)
            if memory.saver >= start:
                until = memory.last + 1 if memory.saver == NEVER_SAVED else end
                going[: max(until - start, 0)] -= size
            if start <= memory.saver < end:
                coming[memory.saver - start :] -= size
                kept -= size
            if any(start <= consumer < end for consumer in value.consumers):
                received += size
                returned += size if value.requires_grad else 0
        for value, memory in self._crossing(end):
            size = value.num_bytes(rows)
            if value.producer >= start:
                sent += size
                arriving += size if value.requires_grad else 0
                kept += size if memory.saver >= end else 0
                if memory.saver != ALWAYS_HELD:
                    coming[: max(min(memory.saver, end) - start, 0)] += size
        behind = self._gradients_from_behind(end, rows)
        for since, size in behind.values():
            coming[max(since - start, 0) :] -= size
        for value, memory in self._crossing(start):
            since, until = self._copied(memory, start, end, behind.keys())
            coming[since - start : until - start] += value.num_bytes(rows)
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

    def _crossing(self, position: int) -> list[tuple[Value, ValueMemory]]:
        """Values alive across the cut before `position`, each with where its memory is counted."""
        alive = np.flatnonzero((self._producer < position) & (self._last >= position))
        return [self._values[index] for index in alive]

    def _gradients_from_behind(self, end: int, rows: int) -> dict[object, tuple[int, int]]:
        """Gradients that the profile has in atoms before `end` and that come from those behind: since where, and bytes.

        Where several uses lie behind and others before, it is their sum, and gone when the next use has been added.
        """
        found: dict[object, tuple[int, int]] = {}
        for value, memory in self._crossing(end):
            if not value.requires_grad:
                continue
            behind = [gradient for gradient in memory.gradients if gradient.user >= end]
            before = [consumer for consumer in value.consumers if consumer < end]
            known = behind[0] if len(behind) == 1 else None if before else memory.total
            if known is None:
                known = GradientMemory(end, -1, max(before, default=value.producer))
            key = known.memory if known.memory >= 0 else value.name
            since, size = found.get(key, (known.until, 0))
            found[key] = min(since, known.until), max(size, int(value.num_bytes(rows) * known.spread))
        return found

    def _copied(self, memory: ValueMemory, start: int, end: int, behind: Collection[object]) -> tuple[int, int]:
        """The atoms that run while the gradient of a received value is there twice.

        It is copied where another value has the same tensor for its gradient, until that one's own atom has run.
        """
        own = [gradient for gradient in memory.gradients if start <= gradient.user < end]
        if len(own) != 1:
            return start, start  # none, or a sum, which is nobody else's
        (gradient,) = own
        if gradient.memory in behind:
            return start, gradient.user + 1
        others = [maker for maker in self._sharers.get(gradient.memory, ()) if start <= maker < gradient.user]
        return min(others, default=gradient.user + 1), gradient.user + 1

    def _add_tied(self, coming: Array, saved: Array, start: int, end: int) -> None:
        """A weight used several times here: the gradient of one use waits for that of the next, to be added to it."""
        for parameter in self._tied:
            own = [atom - start for atom in parameter.atoms if start <= atom < end]
            if len(own) > 1:
                coming[own[0] : own[-1]] += parameter.num_bytes
                for atom in own[:-1]:
                    coming[atom] = max(coming[atom], saved[atom] + 3 * parameter.num_bytes)
