"""The event engine: a program read with a clock.

- A device computes one instruction at a time. Devices of a host with fewer compute slots than busy devices
  share them evenly (`shared`): processes on the cores of one machine.
- Messages and gradient sums take turns on the links (`network`); who is ready first goes first.
- Each rank is a generator, suspended where it must wait. The heap of events says who goes on next and when: ranks,
  then shared hosts, then messages placed later, by number where the time is the same.
- A rank goes on to the links only when no event is before its clock, so that "first" is by time. It runs ahead of
  the others only through computation, which nobody else can see.
- A computation with something inside it is done in parts, with that between them.
- Where a step uses sums of the one before, steps are simulated until one leaves behind what the one before it left:
  that is how long each of many takes. A rank that waits for others updates meanwhile what it can.

One heap operation per message rather than per instruction keeps a million instructions within a second or two.
"""

from collections.abc import Generator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from plait.cost import Costs
from plait.errors import PlaitError
from plait.plan import Plan
from plait.program import Instruction, Op, Program
from plait.program.garbage import no_collection
from plait.simulate.collectives import Collectives
from plait.simulate.network import Network
from plait.simulate.script import Script, script_of
from plait.simulate.shared import SharedHost, shared_hosts
from plait.simulate.timeline import Record, Timeline
from plait.simulate.times import Times

# Looked up once: a member of an enumeration costs four times a plain name.
_F, _B, _I, _W, _SEND, _RECV, _FREE = Op.F, Op.B, Op.I, Op.W, Op.SEND, Op.RECV, Op.FREE


_MOST_STEPS, _ALIKE = 8, 1e-6  # in a row; of a step


def simulate(program: Program, plan: Plan, costs: Costs) -> Timeline:
    """The timeline of one step."""
    with no_collection():
        records: list[Record] = []
        seconds = _simulated(program, plan, costs, records)
        return Timeline("simulated", len(program.ranks), tuple(records), seconds)


def step_seconds(program: Program, plan: Plan, costs: Costs) -> float:
    """How long one step takes: `simulate(…).step_seconds` without the timeline, for searches."""
    with no_collection():
        return _simulated(program, plan, costs, None)


def _simulated(program: Program, plan: Plan, costs: Costs, records: list[Record] | None) -> float:
    """The end of a step in a row of many, which leaves behind what it found. Most rows come to that with the second."""
    script = script_of(program)
    engine = _Engine(program, script, plan, costs, None if script.carries else records)
    end = engine.run()
    for _ in range(_MOST_STEPS if script.carries else 0):
        before = engine.left_behind(end)
        if records is not None:
            records.clear()
            records += [(r, "reduce", Instruction(Op.REDUCE, name=b), 0.0, e) for (r, b), e in before.sums.items() if e]
        engine = _Engine(program, script, plan, costs, records, before)
        end = engine.run()
        if engine.left_behind(end).is_like(before, _ALIKE * end):
            break
    if records is not None and script.carries:  # what goes on in the next step is shown at the beginning of this one
        records[:] = [(rank, lane, ins, start, min(until, end)) for rank, lane, ins, start, until in records]
    return end


class _LeftBehind(NamedTuple):
    """What a step leaves to the next one, in times of that: when channels are free, and the ends of sums by rank and
    bucket that the rank has yet to use."""

    channel_free: Sequence[float]
    sums: Mapping[tuple[int, str], float]

    def is_like(self, other: "_LeftBehind", seconds: float) -> bool:
        """Whether it is the same but for so many seconds."""
        return self.sums.keys() == other.sums.keys() and all(
            abs(end - other.sums[key]) <= seconds for key, end in self.sums.items()
        )


class _Engine:
    def __init__(
        self,
        program: Program,
        script: Script,
        plan: Plan,
        costs: Costs,
        records: list[Record] | None,
        before: _LeftBehind | None = None,
    ) -> None:
        self.parts = script.parts
        self.num_ranks = len(program.ranks)
        self.records = records
        self.times = Times(program, plan, costs)
        self.events: list[tuple[float, int]] = [(0.0, rank) for rank in range(self.num_ranks)]
        self.hosts = shared_hosts(plan, first_event=self.num_ranks)
        self.host_by_event = {host.event: host for host in self.hosts if host is not None}
        first_message_event = self.num_ranks + len(self.host_by_event)
        free, sums = before or (None, {})
        self.network = Network(program, script, plan, self.events, first_message_event, records, free)
        self.collectives = Collectives(program, self.times, self.network, sums)
        # Sums of the step before, and of this one, that a rank has used while it waited for others.
        carried = {(rank, name) for rank, part in enumerate(script.parts) for name in part.carried}
        self.used_early = carried - sums.keys() if before else set()
        self.used_at_the_end: set[tuple[int, str]] = set()
        self.stages = program.stages
        self.coupled = [stage.coupled or stage.tensor > 1 for stage in program.stages]
        self.waits_at: list[Instruction | None] = [None] * self.num_ranks
        self.finished = [0.0] * self.num_ranks

    def run(self) -> float:
        """The end of the step."""
        ranks = [self._rank(rank) for rank in range(self.num_ranks)]
        for generator in ranks:
            next(generator)
        go_on = [generator.send for generator in ranks]
        events, num_ranks, first_message_event = self.events, self.num_ranks, self.network.first_event
        while events:
            now, who = heappop(events)
            if who < num_ranks:
                go_on[who](now)
            elif who >= first_message_event:
                self.network.go_on(who, now)
            else:
                self._host_event(self.host_by_event[who], now)
        for rank, instruction in enumerate(self.waits_at):
            if instruction is not None:
                raise PlaitError(
                    f"simulation stopped: rank {rank} waits for ever at {instruction}. "
                    "Run the static check (`check_program`) for the reason."
                )
        return max(self.finished)

    def left_behind(self, end: float) -> _LeftBehind:
        """After a step that ended then."""
        sums = {
            (rank, name): max(self.collectives.sums[name].end - end, 0.0)
            for rank, part in enumerate(self.parts)
            for name in part.carried
            if (rank, name) not in self.used_at_the_end
        }
        return _LeftBehind([max(free - end, 0.0) for free in self.network.channel_free], sums)

    def _rank(self, rank: int) -> Generator[None, float, None]:
        """Reads one rank's part. Sent the time of the event that wakes it; by then its own clock may be later."""
        part, network, events, records = self.parts[rank], self.network, self.events, self.records
        ready, when, sleeper = network.ready, network.when, network.sleeper
        place, place_later = network.place, network.place_later
        seconds = [self.times.compute(rank, *work) for work in part.works]
        alone = self.hosts[rank] is None and not any(self.coupled[work.stage] for work in part.works)
        inside: list[tuple[Instruction, int]] = []  # the computation to come
        now = yield
        for instruction, number, moments in zip(part.instructions, part.numbers, part.waits, strict=True):
            op = instruction[0]
            if instruction[8]:
                inside.append((instruction, number))
                continue
            if op is _RECV:
                if ready[number] < 0.0:  # the sender has yet to come
                    ready[number] = now
                else:
                    place_later(number, now)
                continue
            if inside and op is _F:
                now = self._use_early(rank, inside, now)
            if moments:
                until = now
                for moment in moments:
                    while when[moment] < 0.0:
                        sleeper[moment], self.waits_at[rank] = rank, instruction
                        now = max(now, (yield))
                    if when[moment] > until:
                        until = when[moment]
                if until > now:
                    if records is not None:
                        start = network.on_the_wire(moments, until)
                        records.append((rank, "wait", instruction, max(now, start), until))
                    now = until
            if inside:
                now = yield from self._compute_in_parts(rank, instruction, now, seconds[number], inside)
                inside = []
                continue
            if op is _F or op is _B or op is _I or op is _W:
                if not alone:
                    now = yield from self._compute_with_others(rank, instruction, now, seconds[number])
                    continue
                end = now + seconds[number]
                if records is not None:
                    records.append((rank, "compute", instruction, now, end))
                now = end
            elif op is not _FREE:
                if events and events[0][0] < now:  # somebody may be ahead of us on the links
                    heappush(events, (now, rank))
                    yield
                if op is not _SEND:
                    now = yield from self._rest(rank, instruction, now)
                elif ready[number] < 0.0:  # the receiver has yet to come
                    ready[number] = now
                elif ready[number] > now:  # posted by a rank whose clock is ahead
                    place_later(number, ready[number])
                else:
                    place(number, now)
        self.finished[rank], self.waits_at[rank] = now, None
        yield

    def _compute_in_parts(
        self, rank: int, computation: Instruction, now: float, seconds: float, inside: Sequence[tuple[Instruction, int]]
    ) -> Generator[None, float, float]:
        """A computation with what happens inside it; sums and messages keep their order whatever the times say."""
        earliest = {_SEND: 0.0, Op.REDUCE: 0.0}
        network = self.network
        moments: list[tuple[float, Instruction, int]] = []
        for what, number in inside:
            at = min(self.times.inside(rank, what, computation), seconds)
            if what.op in earliest:
                earliest[what.op] = at = max(at, earliest[what.op])
            moments.append((at, what, number))
        if self.coupled[computation.stage] and computation.op is not _W:
            now = yield from self._together(rank, computation, now)
        done = 0.0
        for at, what, number in sorted(moments, key=lambda moment: moment[0]):
            if at > done:
                now = yield from self._work(rank, computation, now, at - done)
                done = at
            if self.events and self.events[0][0] < now:
                heappush(self.events, (now, rank))
                yield
            if what.op is not _SEND:
                now = yield from self._rest(rank, what, now)
            elif network.ready[number] < 0.0:
                network.ready[number] = now
            else:
                network.place_later(number, max(now, network.ready[number]))
        return (yield from self._work(rank, computation, now, seconds - done)) if seconds > done else now

    def _use_early(self, rank: int, inside: Sequence[tuple[Instruction, int]], now: float) -> float:
        """Sums of the step before that are there when the rank comes to a forward are used before it waits for
        messages; gives the end of it."""
        if self.hosts[rank] is not None:
            return now  # others may need its core
        for what, _ in inside:
            key = rank, what.name
            there = self.collectives.carried.get(key, 0.0) <= now
            if what.op is Op.AWAIT and there and key not in self.used_early:
                now = self._use(rank, what.name, now)
                self.used_early.add(key)
        return now

    def _use(self, rank: int, bucket: str, start: float) -> float:
        end = start + self.times.step(rank, bucket)
        if self.records is not None:
            self.records.append((rank, "compute", Instruction(Op.STEP, name=bucket), start, end))
        return end

    def _rest(self, rank: int, instruction: Instruction, now: float) -> Generator[None, float, float]:
        """What is neither a computation nor a message; gives the time at which the rank can go on."""
        self.waits_at[rank] = instruction
        op = instruction.op
        if op is Op.REDUCE or op is Op.REDUCE_TIED:
            self.collectives.join(instruction, now)
            return now
        if op is Op.AWAIT:
            if instruction.name in self.parts[rank].carried:
                return self._await_carried(rank, instruction, now)
            return (yield from self.collectives.await_sum(rank, instruction, now))
        if op is Op.STEP:
            if (rank, instruction.name) in self.used_early:
                return now
            return (yield from self._work(rank, instruction, now, self.times.step(rank, instruction.name)))
        together = yield from self.collectives.meet(rank, now, op, self.num_ranks)
        if op is Op.LOSS:
            self._use_at_the_end(rank, now, together)
        return together + self.times.meeting

    def _await_carried(self, rank: int, instruction: Instruction, now: float) -> float:
        """Gives the time at which a sum of the step before is there; those that come sooner are used meanwhile."""
        key = rank, instruction.name
        if key in self.used_early:
            return now
        until = self.collectives.carried.get(key, 0.0)
        for name in self.parts[rank].carried if self.hosts[rank] is None else ():
            other = rank, name
            there = max(now, self.collectives.carried.get(other, 0.0))
            if other != key and other not in self.used_early and there < until:
                now = self._use(rank, name, there)
                self.used_early.add(other)
        return self.collectives.await_carried(rank, instruction, now)

    def _use_at_the_end(self, rank: int, now: float, until: float) -> None:
        """While a rank waits for others to end their step it updates what has been summed, for the next one."""
        if self.hosts[rank] is not None:
            return
        for name in self.parts[rank].carried:
            summed = self.collectives.sums[name].end
            if summed >= 0.0 and max(now, summed) + self.times.step(rank, name) <= until:
                now = self._use(rank, name, max(now, summed))
                self.used_at_the_end.add((rank, name))

    def _compute_with_others(
        self, rank: int, instruction: Instruction, now: float, seconds: float
    ) -> Generator[None, float, float]:
        """On shared cores, or in a stage whose ranks run each micro-batch together."""
        self.waits_at[rank] = instruction
        if self.hosts[rank] is not None and self.events and self.events[0][0] < now:
            heappush(self.events, (now, rank))
            yield
        if self.coupled[instruction.stage] and instruction.op is not _W:
            now = yield from self._together(rank, instruction, now)
        return (yield from self._work(rank, instruction, now, seconds))

    def _together(self, rank: int, instruction: Instruction, now: float) -> Generator[None, float, float]:
        """Gives the time at which all ranks have come that run the micro-batch together with this one."""
        op, stage, micro_batch = instruction[:3]
        others = self.stages[stage].together(rank, micro_batch)
        return (yield from self.collectives.meet(rank, now, (op, stage, micro_batch, others[0]), len(others)))

    def _work(self, rank: int, instruction: Instruction, now: float, seconds: float) -> Generator[None, float, float]:
        """Keeps the device busy; gives the time at which it is done."""
        host = self.hosts[rank]
        if host is not None:
            host.start(rank, now, seconds, instruction)
            heappush(self.events, (host.next_end(), host.event))
            return (yield)
        if self.records is not None:
            self.records.append((rank, "compute", instruction, now, now + seconds))
        return now + seconds

    def _host_event(self, host: SharedHost, now: float) -> None:
        if now != host.scheduled:
            return  # others have started since: a later event took this one's place
        for rank, start, instruction in host.finish(now):
            if self.records is not None:
                self.records.append((rank, "compute", instruction, start, now))
            heappush(self.events, (now, rank))
        if host.busy:
            heappush(self.events, (host.next_end(), host.event))
