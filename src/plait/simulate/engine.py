"""The event engine: a program read with a clock.

- A device computes one instruction at a time. Devices of a host with fewer compute slots than busy devices
  share them evenly (`shared`): processes on the cores of one machine.
- Messages and gradient sums take turns on the links (`network`); who is ready first goes first.
- Each rank is a generator, suspended where it must wait. The heap of events says who goes on next and when: ranks,
  then shared hosts, then messages placed later, by number where the time is the same.
- A rank goes on to the links only when no event is before its clock, so that "first" is by time. It runs ahead of
  the others only through computation, which nobody else can see.

One heap operation per message rather than per instruction keeps a million instructions within a second or two.
"""

from collections.abc import Generator
from heapq import heappop, heappush

from plait.cost import Costs
from plait.errors import PlaitError
from plait.plan import Plan
from plait.program import Instruction, Op, Program
from plait.program.garbage import no_collection
from plait.simulate.collectives import Collectives
from plait.simulate.network import Network
from plait.simulate.script import script_of
from plait.simulate.shared import SharedHost, shared_hosts
from plait.simulate.timeline import Record, Timeline
from plait.simulate.times import Times

# Looked up once: a member of an enumeration costs four times a plain name.
_F, _B, _I, _W, _SEND, _RECV, _FREE = Op.F, Op.B, Op.I, Op.W, Op.SEND, Op.RECV, Op.FREE


def simulate(program: Program, plan: Plan, costs: Costs) -> Timeline:
    """The timeline of one step."""
    with no_collection():
        records: list[Record] = []
        seconds = _Engine(program, plan, costs, records).run()
        return Timeline("simulated", len(program.ranks), tuple(records), seconds)


def step_seconds(program: Program, plan: Plan, costs: Costs) -> float:
    """How long one step takes: `simulate(…).step_seconds` without the timeline, for searches."""
    with no_collection():
        return _Engine(program, plan, costs, None).run()


class _Engine:
    def __init__(self, program: Program, plan: Plan, costs: Costs, records: list[Record] | None) -> None:
        script = script_of(program)
        self.parts = script.parts
        self.num_ranks = len(program.ranks)
        self.records = records
        self.times = Times(program, plan, costs)
        self.events: list[tuple[float, int]] = [(0.0, rank) for rank in range(self.num_ranks)]
        self.hosts = shared_hosts(plan, first_event=self.num_ranks)
        self.host_by_event = {host.event: host for host in self.hosts if host is not None}
        first_message_event = self.num_ranks + len(self.host_by_event)
        self.network = Network(program, script, plan, self.events, first_message_event, records)
        self.collectives = Collectives(program, self.times, self.network)
        self.coupled = [stage.coupled for stage in program.stages]
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

    def _rank(self, rank: int) -> Generator[None, float, None]:
        """Reads one rank's part. Sent the time of the event that wakes it; by then its own clock may be later."""
        part, network, events, records = self.parts[rank], self.network, self.events, self.records
        ready, when, sleeper = network.ready, network.when, network.sleeper
        place, place_later = network.place, network.place_later
        seconds = [self.times.compute(rank, *work) for work in part.works]
        alone = self.hosts[rank] is None and not any(self.coupled[work.stage] for work in part.works)
        now = yield
        for instruction, number, moments in zip(part.instructions, part.numbers, part.waits, strict=True):
            op = instruction[0]
            if op is _RECV:
                if ready[number] < 0.0:  # the sender has yet to come
                    ready[number] = now
                else:
                    place_later(number, now)
                continue
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

    def _rest(self, rank: int, instruction: Instruction, now: float) -> Generator[None, float, float]:
        """What is neither a computation nor a message; gives the time at which the rank can go on."""
        self.waits_at[rank] = instruction
        op = instruction.op
        if op is Op.REDUCE or op is Op.REDUCE_TIED:
            self.collectives.join(instruction, now)
            return now
        if op is Op.AWAIT:
            return (yield from self.collectives.await_sum(rank, instruction, now))
        if op is Op.STEP:
            return (yield from self._work(rank, instruction, now, self.times.step(rank, instruction.name)))
        together = yield from self.collectives.meet(rank, now, op, self.num_ranks)
        return together + self.times.meeting

    def _compute_with_others(
        self, rank: int, instruction: Instruction, now: float, seconds: float
    ) -> Generator[None, float, float]:
        """On shared cores, or in a stage whose replicas run each micro-batch together."""
        op, stage, micro_batch = instruction[:3]
        self.waits_at[rank] = instruction
        if self.hosts[rank] is not None and self.events and self.events[0][0] < now:
            heappush(self.events, (now, rank))
            yield
        if self.coupled[stage] and op is not _W:
            size = self.collectives.working(stage, micro_batch)
            now = yield from self.collectives.meet(rank, now, (op, stage, micro_batch), size)
        return (yield from self._work(rank, instruction, now, seconds))

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
