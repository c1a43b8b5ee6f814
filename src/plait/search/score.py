"""Scoring a layout without making its program: a time that a good order of its micro-batches comes close to.

With F_s, B_s forward and backward seconds of a micro-batch on stage s, c_s the seconds it takes from stage s to the
next (and back), A_s the gradient sum and optimiser step, M micro-batches:

    h_s = sum over i < s of F_i + c_i                          the earliest start of stage s
    t_s = max over i <= s of sum over i <= k < s of (b_k + c_k) + w_i + A_i     what follows its last backward
    score = max( max_s h_s + M (F_s + B_s) + max(A_s, t_s),  max_s h_s - c_s + M max(c_s, c'_s) + F_s + b_s + t_s,
                 M max_l busy_l )

where b and w are the parts of a backward others wait for and nobody waits for (I and W where it is split; then s of the
Ws are done while gradients go down, and t_s is shorter by them), and busy_l is what one micro-batch keeps link l busy.
These are the load, channel and link certificates of the layout (`bounds`), for a micro-batch of average size and with
values charged on every boundary they pass: near to the truth and quick, no bound.
"""

import math
from bisect import bisect_right

from plait.search.groups import Groups, Member
from plait.search.layout import Layout
from plait.search.loads import Loads
from plait.search.problem import Problem


class Scorer:
    """`scorer(layout)`: seconds; infinite where a stage does not fit or may not be split."""

    def __init__(self, problem: Problem, loads: Loads, groups: Groups, *, split: bool) -> None:
        self.problem, self.groups = problem, groups
        self.waited_for = 0.5 if split else 1.0  # the part of a backward that the stage before waits for
        self.kinds = {name: [column.tolist() for column in vars(kind).values()] for name, kind in loads.kinds.items()}
        self.optimizer = problem.costs.optimizer
        self.trained, self.held = loads.trained_bytes.tolist(), loads.held_bytes.tolist()
        self.tensors, self.mixers = loads.num_tensors.tolist(), loads.unsplittable.tolist()
        self.crossing = [
            column.tolist()
            for column in (loads.forward_per_row, loads.forward_fixed, loads.backward_per_row, loads.backward_fixed)
        ]
        self.shared_parameters = [p for p in problem.graph.parameters if p.trainable and len(p.atoms) > 1]

    def __call__(self, layout: Layout) -> float:
        stages = self._stages(layout)
        if stages is None:
            return math.inf
        there, back, after = (list(column) for column in zip(*stages, strict=True))
        count = layout.micro_batches
        over, under, busiest = self._channels(layout, self.problem.batch_size / count)
        return max(self._longest(there, back, after, over, under, count), count * busiest)

    def times(self, layout: Layout) -> tuple[list[float], list[float], list[float], list[float]]:
        """Forward and backward of every stage, transfers over every boundary and back; of one micro-batch."""
        stages = self._stages(layout)
        assert stages is not None, "only a layout with a finite score has times"
        there, back, _ = (list(column) for column in zip(*stages, strict=True))
        over, under, _ = self._channels(layout, self.problem.batch_size / layout.micro_batches)
        return there, back, over, under

    def room(self, layout: Layout) -> list[int]:
        """How many micro-batches each stage could hold in its memory."""
        rows = math.ceil(self.problem.batch_size / layout.micro_batches)
        edges = (0, *layout.boundaries, len(self.trained) - 1)
        found = []
        for s, group in enumerate(layout.groups):
            most = layout.micro_batches
            for member in self.groups.members(group, rows):
                once, each = self._bytes(member, layout.recompute[s], edges[s], edges[s + 1])
                most = min(most, int((member.memory_bytes - once) / max(each, 1e-9)))
            found.append(most)
        return found

    def _stages(self, layout: Layout) -> list[tuple[float, float, float]] | None:
        rows = math.ceil(self.problem.batch_size / layout.micro_batches)
        if rows < max(map(len, layout.groups)):
            return None
        edges = (0, *layout.boundaries, len(self.trained) - 1)
        part = self.problem.batch_size / layout.micro_batches / rows
        tied = self._tied(layout)
        found = []
        for s in range(layout.num_stages):
            times = self._stage(layout, s, edges[s], edges[s + 1], rows, part)
            if times is None:
                return None
            forward, backward, after = times
            found.append((forward, backward, after + tied[s]))
        return found

    def _tied(self, layout: Layout) -> list[float]:
        """Seconds each stage takes to sum what it shares with other stages."""
        seconds = [0.0] * layout.num_stages
        for parameter in self.shared_parameters:
            stages = sorted({bisect_right(layout.boundaries, atom) for atom in parameter.atoms})
            if len(stages) > 1:
                fixed, per_byte = self.groups.summing(tuple(sorted({d for s in stages for d in layout.groups[s]})))
                for s in stages:
                    seconds[s] += fixed + per_byte * parameter.num_bytes
        return seconds

    def _longest(
        self,
        there: list[float],
        back: list[float],
        after: list[float],
        over: list[float],
        under: list[float],
        count: int,
    ) -> float:
        """The load and channel certificates, in one pass."""
        waited = self.waited_for
        head, chain, longest = 0.0, 0.0, 0.0
        for s, (forward, backward, tail) in enumerate(zip(there, back, after, strict=True)):
            put_off = min(count, s + 1) * (1 - waited) * backward
            if s:
                chain += under[s - 1]
                channel = count * max(over[s - 1], under[s - 1])
                longest = max(longest, head - over[s - 1] + channel + forward + waited * backward + chain)
            longest = max(longest, head + count * (forward + backward) + max(tail, chain - put_off))
            chain = max(waited * backward + chain, backward + tail) if s else backward + tail
            head += forward + (over[s] if s < len(over) else 0.0)
        return longest

    def _stage(
        self, layout: Layout, s: int, first: int, last: int, rows: int, part: float
    ) -> tuple[float, float, float] | None:
        """Forward, backward, and gradient sum with step; None where the stage cannot be."""
        group = layout.groups[s]
        if len(group) > 1 and self.mixers[last] > self.mixers[first]:
            return None
        trained = self.trained[last] - self.trained[first]
        held = min(layout.num_stages - s, layout.micro_batches)
        forward = backward = step = 0.0
        for member in self.groups.members(group, rows):
            ff, fr, bf, br, *_ = self.kinds[member.kind]
            own = member.rows * part
            there = (ff[last] - ff[first] + (fr[last] - fr[first]) * own) / member.speed
            back = (bf[last] - bf[first] + (br[last] - br[first]) * own) / member.speed
            if layout.recompute[s]:
                back += there
            forward, backward = max(forward, there), max(backward, back)
            cost = self.optimizer[member.kind]
            step = max(step, cost.seconds(trained, self.tensors[last] - self.tensors[first]) / member.speed)
            once, each = self._bytes(member, layout.recompute[s], first, last)
            if once + each * held > member.memory_bytes:
                return None
        if len(group) > 1:
            fixed, per_byte = self.groups.summing(group)
            step += fixed + per_byte * trained
        return forward, backward, step

    def _bytes(self, member: Member, recompute: bool, first: int, last: int) -> tuple[float, float]:
        """What a device holds once, and for each micro-batch in flight."""
        *_, sf, sr = self.kinds[member.kind]
        saved = sf[last] - sf[first] + (sr[last] - sr[first]) * member.rows
        received = self.crossing[0][first] * member.rows + self.crossing[1][first]
        leaving = self.crossing[0][last] * member.rows + self.crossing[1][last]
        state = self.optimizer[member.kind].state_bytes_per_byte
        static = self.held[last] - self.held[first] + (self.trained[last] - self.trained[first]) * (1 + state)
        return (static + leaving + saved, received) if recompute else (static + leaving, received + saved)

    def _channels(self, layout: Layout, size: float) -> tuple[list[float], list[float], float]:
        """Seconds over each boundary and back, and of the busiest link for one micro-batch."""
        over, under = [], []
        busy: dict[int, float] = {}
        fr, ff, br, bf = self.crossing
        for s, boundary in enumerate(layout.boundaries):
            forward, backward = fr[boundary] * size + ff[boundary], br[boundary] * size + bf[boundary]
            per_byte, latency = self.groups.transfer(layout.groups[s], layout.groups[s + 1])
            over.append(forward * per_byte + latency)
            under.append(backward * per_byte + latency)
            for channel, share in self.groups.busy(layout.groups[s], layout.groups[s + 1]).items():
                busy[channel] = busy.get(channel, 0.0) + forward * share
                busy[channel ^ 1] = busy.get(channel ^ 1, 0.0) + backward * share
        return over, under, max(busy.values(), default=0.0)
