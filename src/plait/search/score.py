"""Scoring a layout without making its program: a time that a good order of its micro-batches comes close to.

With F_s, B_s forward and backward seconds of a micro-batch on stage s, c_s the seconds it takes from stage s to the
next (and back), A_s the gradient sum and optimiser step, M micro-batches:

    h_s = sum over i < s of F_i + c_i                          the earliest start of stage s
    t_s = max over i <= s of sum over i <= k < s of (b_k + c_k) + w_i + A_i     what follows its last backward
    score = max( max_p min h_s + M sum (F_s + B_s) + min max(A_s, t_s) over the stages s of position p,
                  max_s h_s - c_s + M max(c_s, c'_s) + F_s + b_s + t_s,
                 max_l M busy_l + summing_l )

where b and w are the parts of a backward others wait for and nobody waits for (I and W where it is split; then the Ws
may all be done while the last gradients go down, and t_s is shorter by them), busy_l is what one micro-batch keeps
channel l busy, and summing_l what all gradient sums do.
These are the load, channel and link certificates of the layout (`bounds`), for a micro-batch of average size and with
values charged on every boundary they pass: near to the truth and quick, no bound.

Overlap. Of S seconds of sums in k buckets the last bucket at least is exposed, and what is not done while the others
are computed: A = max(S / k, S - (k-1)/k H), with H the last backward where sums begin inside it (`backward`), and with
it the next step's first forward (`full`). There A lies between two steps of the stage itself, so it is in t only for
the first stage, for which all others wait; for the others M (F + B) + A is no more than a step.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from plait.graph import Parameter
from plait.program import FREES_BEHIND, RECEIVES_AHEAD
from plait.schedule.sweep import GradientSum, Way
from plait.search.groups import Group, Groups, Member, grouped, num_replicas, tensor_of
from plait.search.layout import Layout
from plait.search.loads import Loads
from plait.search.problem import Problem

_User = tuple[int, bool] | int  # of a channel: a boundary, there or back; or a gradient sum
_POWER, _LITTLE = 4, 0.01
_AHEAD = (RECEIVES_AHEAD + 1) // 2  # micro-batches: every other computation is a forward


class StageTimes(NamedTuple):
    """Of one micro-batch on one stage. A fused backward is all `input`.

    `after` comes after the last of them in the step, `between` before the first in the next: sums and the update.
    """

    forward: float
    input: float
    weight: float
    after: float
    between: float


class Sum(NamedTuple):
    """All gradient sums of one stage, or of a tied parameter of several, and how long they keep channels busy."""

    stages: tuple[int, ...]
    seconds: float
    busy: tuple[tuple[int, float], ...]
    buckets: int
    group: Group

    def one_by_one(self, hops: Sequence[tuple[int, float]]) -> list[GradientSum]:
        """The sums of its buckets, which keep these channels busy together."""
        each = tuple((channel, seconds / self.buckets) for channel, seconds in hops)
        return [GradientSum(self.stages, self.seconds / self.buckets, each, self.group)] * self.buckets


class LayoutTimes(NamedTuple):
    """What a layout's step is made of. `over` and `under` are transfers across each boundary and back."""

    stages: list[StageTimes]
    sums: list[Sum]
    step: float  # what comes after all have computed, and after sums where the step waits for them
    over: list[float]
    under: list[float]
    busiest: float  # channel, with all its messages and sums


class Scorer:
    """`scorer(layout)`: seconds; infinite where a stage does not fit or may not be split."""

    def __init__(self, problem: Problem, loads: Loads, groups: Groups, *, split: bool) -> None:
        self.problem, self.groups, self.split = problem, groups, split
        self.overlap = problem.overlap
        self.shares = {degree: _Share(loads.on(degree)) for degree in (1, *loads.tensor)}
        self.optimizer = problem.costs.optimizer
        self.num_atoms = len(problem.graph.atoms)
        self.tensors, self.mixers = loads.num_tensors.tolist(), loads.unsplittable.tolist()
        self.crossing = [
            column.tolist()
            for column in (loads.forward_per_row, loads.forward_fixed, loads.backward_per_row, loads.backward_fixed)
        ]
        self.shared_parameters = [p for p in problem.graph.parameters if p.trainable and len(p.atoms) > 1]

    def __call__(self, layout: Layout) -> float:
        times = self.times(layout)
        return math.inf if times is None else _step(times, layout)

    def downhill(self, layout: Layout) -> float:
        """The score and a little of how uneven the stages are, so that a search sees its way where a score is flat."""
        times = self.times(layout)
        if times is None:
            return math.inf
        loads = [sum(stage[:3]) for stage in times.stages]
        uneven = (sum(load**_POWER for load in loads) / len(loads)) ** (1 / _POWER)
        return _step(times, layout) + _LITTLE * layout.micro_batches * uneven

    def times(self, layout: Layout) -> LayoutTimes | None:
        """None where a stage does not fit or may not be split."""
        rows = math.ceil(self.problem.batch_size / layout.micro_batches)
        if layout.micro_batches * max(map(num_replicas, layout.groups)) > self.problem.batch_size:
            return None
        edges = (0, *layout.boundaries, self.num_atoms)
        if not self._tied_alike(layout):
            return None
        part = self.problem.batch_size / layout.micro_batches / rows
        sums = [*self._sums(layout, edges), *self._tied(layout)]
        stages: list[StageTimes] = []
        longest = 0.0
        for s in range(layout.num_stages):
            found = self._stage(layout, s, edges[s], edges[s + 1], rows, part)
            if found is None:
                return None
            longest = max(longest, found.after)
            exposed = sum(self._exposed(one, found) for one in sums if s in one.stages)
            between = found.after + exposed
            stages.append(found._replace(after=0.0 if s and self.overlap == "full" else between, between=between))
        size = self.problem.batch_size / layout.micro_batches
        step = stages[0].after if self.overlap == "full" else longest
        return LayoutTimes(stages, sums, step, *self._channels(layout, size, sums))

    def _exposed(self, found: "Sum", times: StageTimes) -> float:
        """Of the seconds of a sum, those that nothing of its stage hides."""
        if self.overlap == "off" or len(found.stages) > 1:
            return found.seconds
        hiding = times.weight or times.input
        if self.overlap == "full":
            hiding += times.forward
        bucket = found.seconds / found.buckets
        return max(bucket, found.seconds - hiding * (found.buckets - 1) / found.buckets)

    def ways(self, layout: Layout, sums: Sequence[Sum]) -> tuple[Callable[[int, bool], Way], list[GradientSum]]:
        """What a micro-batch keeps busy between stages, and what gradient sums do.

        Of channels that the same use, the slowest stands for all.
        """
        size = self.problem.batch_size / layout.micro_batches
        carried: dict[int, dict[_User, float]] = {}
        latency: dict[_User, float] = {}
        fr, ff, br, bf = self.crossing
        for s, boundary in enumerate(layout.boundaries):
            there, back = layout.groups[s], layout.groups[s + 1]
            for gradient, ends in ((False, (there, back)), (True, (back, there))):
                per_row, fixed = (br, bf) if gradient else (fr, ff)
                num_bytes = per_row[boundary] * size + fixed[boundary]
                latency[s, gradient] = self.groups.transfer(*ends)[1]
                for channel, seconds in self.groups.busy(*ends).items():
                    carried.setdefault(channel, {})[s, gradient] = seconds * num_bytes
        for number, found in enumerate(sums):
            for channel, seconds in found.busy:
                carried.setdefault(channel, {})[number] = seconds
        slowest: dict[frozenset[_User], int] = {}
        for channel, loads in carried.items():
            users = frozenset(loads)
            if users not in slowest or sum(loads.values()) > sum(carried[slowest[users]].values()):
                slowest[users] = channel
        hops: dict[_User, list[tuple[int, float]]] = {key: [] for key in (*latency, *range(len(sums)))}
        for channel in sorted(slowest.values()):
            for key, seconds in carried[channel].items():
                hops[key].append((channel, seconds))
        ways = {key: Way(tuple(hops[key]), latency[key]) for key in latency}
        return (
            lambda boundary, gradient: ways[boundary, gradient],
            [bucket for number, found in enumerate(sums) for bucket in found.one_by_one(tuple(hops[number]))],
        )

    def room(self, layout: Layout, reserve: Sequence[int]) -> list[int]:
        """How many micro-batches each position could hold in its memory but `reserve`, each of its stages' counted."""
        rows = math.ceil(self.problem.batch_size / layout.micro_batches)
        edges = (0, *layout.boundaries, self.num_atoms)
        found = []
        for stages, kept in zip(layout.positions, reserve, strict=True):
            most = layout.micro_batches * len(stages)
            for member in self.groups.members(layout.groups[stages[0]], rows):
                needs = [self._bytes(member, layout, s, edges[s], edges[s + 1]) for s in stages]
                free = member.memory_bytes - kept - sum(once for once, _ in needs)
                most = min(most, int(free / max(1e-9, *(each for _, each in needs))))
            found.append(most)
        return found

    def _stage(self, layout: Layout, s: int, first: int, last: int, rows: int, part: float) -> StageTimes | None:
        group = layout.groups[s]
        if num_replicas(group) > 1 and self.mixers[last] > self.mixers[first]:
            return None
        share = self.shares[tensor_of(group)]
        trained = share.trained[last] - share.trained[first]
        held = min(len(layout.positions) - layout.place_of[s], layout.micro_batches)
        forward = backward = weight = after = 0.0
        for member in self.groups.members(group, rows):
            ff, fr, bf, br, _, _, wf, wr = share.kinds[member.kind]
            own = member.rows * part
            there = (ff[last] - ff[first] + (fr[last] - fr[first]) * own) / member.speed
            back = (bf[last] - bf[first] + (br[last] - br[first]) * own) / member.speed
            exchanged = share.exchange(member, first, last, own)
            there, back = there + exchanged[0], back + exchanged[1]
            later = min((wf[last] - wf[first] + (wr[last] - wr[first]) * own) / member.speed, back)
            if layout.recompute[s]:
                back += there
            forward, backward, weight = max(forward, there), max(backward, back), max(weight, later)
            step = self.optimizer[member.kind].seconds(trained, self.tensors[last] - self.tensors[first])
            after = max(after, step / member.speed)
            once, each = self._bytes(member, layout, s, first, last)
            if once + each * held > member.memory_bytes:
                return None
        weight = weight if self.split else 0.0
        return StageTimes(forward, backward - weight, weight, after, after)

    def _sums(self, layout: Layout, edges: Sequence[int]) -> Iterator[Sum]:
        """Of each stage that has replicas."""
        bucket_bytes = self.groups.bucket_bytes(layout.groups)
        for s, group in enumerate(layout.groups):
            trained = self.shares[tensor_of(group)].trained
            num_bytes = trained[edges[s + 1]] - trained[edges[s]]
            if num_replicas(group) > 1 and num_bytes > 0:
                yield self._sum((s,), group, num_bytes, math.ceil(num_bytes / bucket_bytes))

    def _tied(self, layout: Layout) -> Iterator[Sum]:
        """Of each parameter that several stages share."""
        for parameter in self.shared_parameters:
            stages = _holders(parameter, layout)
            if len(stages) > 1:
                tensor = tensor_of(layout.groups[stages[0]])
                devices: Group = tuple(dict.fromkeys(device for s in stages for device in layout.groups[s]))
                devices = grouped(devices, tensor) if tensor > 1 else tuple(sorted(devices))
                yield self._sum(tuple(stages), devices, parameter.num_bytes, 1)

    def _tied_alike(self, layout: Layout) -> bool:
        """Stages that share a parameter have the same parts of it."""
        if all(tensor_of(group) == 1 for group in layout.groups):
            return True
        holders = (_holders(parameter, layout) for parameter in self.shared_parameters)
        return all(len({tensor_of(layout.groups[s]) for s in stages}) == 1 for stages in holders)

    def _sum(self, stages: tuple[int, ...], group: Group, num_bytes: float, buckets: int) -> Sum:
        fixed, per_byte = self.groups.summing(group)
        busy = tuple((channel, seconds * num_bytes) for channel, seconds in self.groups.sum_channels(group))
        return Sum(stages, fixed * buckets + per_byte * num_bytes, busy, buckets, group)

    def _bytes(self, member: Member, layout: Layout, s: int, first: int, last: int) -> tuple[float, float]:
        """What a device holds once, and for each micro-batch in flight."""
        share = self.shares[member.tensor]
        *_, sf, sr, _, _ = share.kinds[member.kind]
        saved = sf[last] - sf[first] + (sr[last] - sr[first]) * member.rows
        received = self.crossing[0][first] * member.rows + self.crossing[1][first]
        leaving = self.crossing[0][last] * member.rows + self.crossing[1][last]
        state = self.optimizer[member.kind].state_bytes_per_byte
        static = share.held[last] - share.held[first] + (share.trained[last] - share.trained[first]) * (1 + state)
        if s == 0 or layout.groups[s - 1] != layout.groups[s]:  # else nothing is sent
            static += received * (_AHEAD + FREES_BEHIND)
        if s + 1 == layout.num_stages or layout.groups[s + 1] != layout.groups[s]:
            static += leaving * (1 + _AHEAD)
        return (static + saved, received) if layout.recompute[s] else (static, received + saved)

    def _channels(self, layout: Layout, size: float, sums: Sequence[Sum]) -> tuple[list[float], list[float], float]:
        """Seconds over each boundary and back for one micro-batch, and of the busiest channel in all."""
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
        total = {channel: layout.micro_batches * seconds for channel, seconds in busy.items()}
        for found in sums:
            for channel, seconds in found.busy:
                total[channel] = total.get(channel, 0.0) + seconds
        return over, under, max(total.values(), default=0.0)


class _Share:
    """What a device of a replica of so many devices has of the chain, up to each atom, as plain lists."""

    def __init__(self, loads: Loads) -> None:
        self.kinds = {name: [column.tolist() for column in vars(kind).values()] for name, kind in loads.kinds.items()}
        self.trained, self.held = loads.trained_bytes.tolist(), loads.held_bytes.tolist()
        columns = vars(loads.exchanges).values() if loads.exchanges is not None else ()
        self.exchanges: list[list[float]] = [column.tolist() for column in columns]

    def exchange(self, member: Member, first: int, last: int, rows: float) -> tuple[float, float]:
        """Seconds of what a micro-batch makes it exchange with the others, forward and backward."""
        if not self.exchanges:
            return 0.0, 0.0
        fm, ff, fr, bm, bf, br = (column[last] - column[first] for column in self.exchanges)
        latency, per_byte = member.links.latency, member.links.seconds_per_byte
        return latency * fm + per_byte * (ff + fr * rows), latency * bm + per_byte * (bf + br * rows)


def _holders(parameter: Parameter, layout: Layout) -> list[int]:
    return sorted({bisect_right(layout.boundaries, atom) for atom in parameter.atoms})


def _step(times: LayoutTimes, layout: Layout) -> float:
    return max(_longest(times, layout.positions, layout.micro_batches), times.busiest)


def _longest(times: LayoutTimes, positions: Sequence[Sequence[int]], count: int) -> float:
    """The load and channel certificates: `head` is h_s, `chain` what follows the last gradient that is sent on."""
    head, chain, longest = 0.0, 0.0, 0.0
    heads, tails = [], []
    for s, (forward, back, weight, after, _) in enumerate(times.stages):
        if s:
            over, under = times.over[s - 1], times.under[s - 1]
            chain += under
            longest = max(longest, head - over + count * max(over, under) + forward + back + chain)
        heads.append(head)
        tails.append(max(after, chain - count * weight))
        chain = max(back + chain, back + weight + after)
        head += forward + (times.over[s] if s < len(times.over) else 0.0)
    for stages in positions:
        load = sum(sum(times.stages[s][:3]) for s in stages)
        longest = max(longest, min(heads[s] for s in stages) + count * load + min(tails[s] for s in stages))
        longest = max(longest, count * load + min(times.stages[s].between for s in stages))
    return longest
