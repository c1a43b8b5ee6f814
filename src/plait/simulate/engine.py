"""The event engine: a program read with a clock.

- A device computes one instruction at a time. Devices of a host with fewer compute slots than busy devices
  share them evenly (`SharedHost`): processes on the cores of one machine.
- Links are full duplex and exclusive: a transfer takes every channel on its route, from when sender and
  receiver are both ready and the channels are free, for bytes over the slowest bandwidth; it arrives one
  latency later. Who is ready first goes first. A gradient sum takes the channels of its ring the same way.
- Ranks are advanced in the order of their clocks, so that "first" is by time. A rank runs ahead of the
  others only through computation, which nobody else can see.

One heap operation per message rather than per instruction keeps a million instructions within seconds.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from heapq import heappop, heappush

from plait.cost import Costs
from plait.errors import PlaitError
from plait.plan import Plan
from plait.program import Instruction, Op, Program
from plait.program.garbage import no_collection
from plait.simulate.shared import SharedHost
from plait.simulate.timeline import Span, Timeline
from plait.simulate.times import Times

# What an instruction answers in place of a time: woken later, the rank does it again, or goes on after it.
_NOT_YET, _STARTED = -1.0, -2.0
# Looked up once: a member of an enumeration costs four times a plain name.
_F, _B, _I, _W, _SEND, _RECV, _FREE = Op.F, Op.B, Op.I, Op.W, Op.SEND, Op.RECV, Op.FREE


class _Message:
    """One SEND and its RECV. `arrival` is negative until the transfer is placed on the links."""

    __slots__ = ("arrival", "flow", "freer", "left", "ready", "sent", "start", "waiter")

    def __init__(self, flow: int, ready: float) -> None:
        self.flow = flow
        self.ready = ready
        self.sent: Instruction | None = None
        self.start = self.left = self.arrival = _NOT_YET
        self.waiter = self.freer = -1  # ranks that wait for it to be on its way


class _Sum:
    """One gradient sum: who has joined, and when it is done."""

    __slots__ = ("end", "joined", "ready", "start", "waiters")

    def __init__(self) -> None:
        self.joined = 0
        self.ready = 0.0
        self.start = self.end = _NOT_YET
        self.waiters: list[int] = []


def simulate(program: Program, plan: Plan, costs: Costs) -> Timeline:
    """The timeline of one step."""
    with no_collection():
        return _Engine(program, Times(program, plan, costs)).run()


class _Engine:
    def __init__(self, program: Program, times: Times) -> None:
        self.program = program
        self.times = times
        self.plan = times.plan
        self.num_ranks = len(program.ranks)
        self.heap: list[tuple[float, int]] = [(0.0, rank) for rank in range(self.num_ranks)]
        self.position = [0] * self.num_ranks
        self.clock = [0.0] * self.num_ranks
        self.channel_free = [0.0] * self.plan.cluster.num_channels
        # Messages of which one side is there, by flow: source * num_ranks + sink.
        self.unsent: defaultdict[int, deque[_Message]] = defaultdict(deque)
        self.unreceived: defaultdict[int, deque[_Message]] = defaultdict(deque)
        self.delayed: list[_Message] = []
        self.routes: dict[int, tuple[tuple[int, ...], float, float]] = {}
        self.needs: list[dict[tuple[int, int, bool], list[_Message]]] = [{} for _ in range(self.num_ranks)]
        self.sent: list[dict[tuple[int, int, bool], list[_Message]]] = [{} for _ in range(self.num_ranks)]
        self.sums = {bucket.name: _Sum() for bucket in program.buckets}
        self.meetings: dict[object, dict[int, float]] = {}
        self.spans: list[Span] = []
        self.hosts = self._shared_hosts()
        self.finished = [0.0] * self.num_ranks
        self.bytes_of: dict[tuple[str, int], int] = {}
        self.seconds_of: list[dict[tuple[Op, int, int], float]] = [{} for _ in range(self.num_ranks)]
        self.coupled = [stage.coupled for stage in program.stages]

    def _shared_hosts(self) -> list[SharedHost | None]:
        """Per rank: the host whose cores it shares, or None where it has its own."""
        cluster = self.plan.cluster
        slots = {host.name: host.compute_slots for host in cluster.hosts}
        names = [cluster.devices[device].host for device in self.plan.devices]
        made: dict[str, SharedHost] = {}
        for name in names:
            capacity = slots[name]
            if capacity is not None and capacity < names.count(name):
                made.setdefault(name, SharedHost(self.num_ranks + len(made), capacity))
        self.host_by_event = {host.event: host for host in made.values()}
        self.first_message_event = self.num_ranks + len(made)
        return [made.get(name) for name in names]

    def run(self) -> Timeline:
        heap = self.heap
        while heap:
            now, who = heappop(heap)
            if who < self.num_ranks:
                self._advance(who, now)
            elif who >= self.first_message_event:
                self._place(self.delayed[who - self.first_message_event], now)
            else:
                self._host_event(self.host_by_event[who], now)
        for rank, position in enumerate(self.position):
            if position < len(self.program.ranks[rank]):
                raise PlaitError(
                    f"simulation stopped: rank {rank} waits for ever at {self.program.ranks[rank][position]}. "
                    "Run the static check (`check_program`) for the reason."
                )
        return Timeline("simulated", self.num_ranks, tuple(self.spans), max(self.finished))

    def _advance(self, rank: int, now: float) -> None:
        """Runs `rank` until it must wait, or would act on the links before an earlier rank has."""
        now = max(now, self.clock[rank])  # it may have computed past the event that woke it
        instructions = self.program.ranks[rank]
        position, end = self.position[rank], len(instructions)
        heap, compute = self.heap, self._compute
        while position < end:
            instruction = instructions[position]
            op = instruction[0]
            if op is _F or op is _B or op is _I or op is _W:
                later = compute(rank, instruction, now)
            elif op is _RECV:
                self._receive(rank, instruction, now)
                later = now
            elif op is _FREE:
                later = self._free(rank, instruction, now)
            elif heap and heap[0][0] < now:  # somebody may be ahead of us on the links
                later = self._let_others_first(rank, now)
            elif op is _SEND:
                self._send(rank, instruction, now)
                later = now
            else:
                later = self._rest(rank, instruction, now)
            if later < 0:
                position += later == _STARTED
                break
            now = later
            position += 1
        self.position[rank] = position
        self.clock[rank] = max(self.clock[rank], now)
        if position == end:
            self.finished[rank] = now

    def _let_others_first(self, rank: int, now: float) -> float:
        """Comes back to the same instruction at `now`, after every rank whose clock is behind."""
        self.clock[rank] = now
        heappush(self.heap, (now, rank))
        return _NOT_YET

    def _compute(self, rank: int, instruction: Instruction, now: float) -> float:
        """When the computation ends; negative where the rank must be woken."""
        op, stage, micro_batch, _, _, _, first, last = instruction
        needs, key = self.needs[rank], (stage, micro_batch, op is not _F)
        waiting = needs.pop(key, None)
        if waiting:
            arrival = self._arrival(rank, waiting)
            if arrival < 0:
                needs[key] = waiting
                return _NOT_YET
            if arrival > now:
                self._record_wait(rank, instruction, waiting, now, arrival)
                now = arrival
        shared = self.hosts[rank]
        if shared is not None and self.heap and self.heap[0][0] < now:
            return self._let_others_first(rank, now)
        if self.coupled[stage] and op is not _W:
            joined = self._meet(rank, now, (op, stage, micro_batch), self._working(stage, micro_batch))
            if joined < 0:
                return _NOT_YET
            now = joined
        seconds_of = self.seconds_of[rank]
        cost = seconds_of.get((op, stage, last - first))
        if cost is None:
            cost = seconds_of[op, stage, last - first] = self.times.compute(rank, op, stage, last - first)
        if shared is not None:
            return self._start_shared(rank, shared, now, cost, instruction)
        # Half the time of calling the class.
        self.spans.append(tuple.__new__(Span, (rank, "compute", instruction, now, now + cost)))
        return now + cost

    # Messages

    def _receive(self, rank: int, ins: Instruction, now: float) -> None:
        """Posts a receive. Sends and receives of one flow match in order."""
        _, stage, micro_batch, _, gradient, peer, _, _ = ins
        flow = peer * self.num_ranks + rank
        waiting = self.unreceived[flow]
        if waiting:
            message = waiting.popleft()
            message.ready = now
            self._when_ready(message)
        else:
            message = _Message(flow, now)
            self.unsent[flow].append(message)
        self.needs[rank].setdefault((stage, micro_batch, gradient), []).append(message)

    def _send(self, rank: int, ins: Instruction, now: float) -> None:
        _, stage, micro_batch, _, gradient, peer, _, _ = ins
        flow = rank * self.num_ranks + peer
        waiting = self.unsent[flow]
        if waiting:
            message = waiting.popleft()
            message.sent = ins
            if message.ready > now:  # posted by a rank whose clock is ahead
                self._when_ready(message)
            else:
                self._place(message, now)
        else:
            message = _Message(flow, now)
            message.sent = ins
            self.unreceived[flow].append(message)
        self.sent[rank].setdefault((stage, micro_batch, gradient), []).append(message)

    def _free(self, rank: int, ins: Instruction, now: float) -> float:
        """When what was sent has left; negative where the rank must be woken."""
        sent, key = self.sent[rank], (ins[1], ins[2], ins[4])
        messages = sent.pop(key, [])
        left = self._left(rank, messages)
        if left < 0:
            sent[key] = messages
            return _NOT_YET
        if left > now:
            self._record_wait(rank, ins, messages, now, left)
            return left
        return now

    def _when_ready(self, message: _Message) -> None:
        """Places the message in its turn: when its later side is ready, after whoever is ready before."""
        event = self.first_message_event + len(self.delayed)
        self.delayed.append(message)
        heappush(self.heap, (message.ready, event))

    def _place(self, message: _Message, now: float) -> None:
        flow = message.flow
        route = self.routes.get(flow)
        if route is None:
            source, sink = divmod(flow, self.num_ranks)
            a, b = self.plan.devices[source], self.plan.devices[sink]
            cluster = self.plan.cluster
            route = self.routes[flow] = (cluster.route(a, b), cluster.bandwidth(a, b), cluster.latency(a, b))
        channels, bandwidth, latency = route
        sent = message.sent
        assert sent is not None
        size = self.bytes_of.get((sent[3], sent[7] - sent[6]))
        if size is None:
            size = self.bytes_of[sent.name, sent.rows] = self.program.edge_by_name[sent.name].value.num_bytes(sent.rows)
        free = self.channel_free
        start = now
        for channel in channels:
            if free[channel] > start:
                start = free[channel]
        left = start + size / bandwidth
        for channel in channels:
            free[channel] = left
        message.start, message.left, message.arrival = start, left, left + latency
        self.spans.append(tuple.__new__(Span, (flow // self.num_ranks, "send", sent, start, left + latency)))
        if message.waiter >= 0:
            heappush(self.heap, (now, message.waiter))
            message.waiter = -1
        if message.freer >= 0:
            heappush(self.heap, (now, message.freer))
            message.freer = -1

    def _arrival(self, rank: int, messages: list[_Message]) -> float:
        """When the last of them is there; negative, with the rank left waiting, while one is not on its way."""
        latest = 0.0
        for message in messages:
            if message.arrival < 0:
                message.waiter = rank
                return _NOT_YET
            if message.arrival > latest:
                latest = message.arrival
        return latest

    def _left(self, rank: int, messages: Sequence[_Message]) -> float:
        """When the last of them has left; negative, with the rank left waiting, while one has no receiver yet."""
        latest = 0.0
        for message in messages:
            if message.left < 0:
                message.freer = rank
                return _NOT_YET
            if message.left > latest:
                latest = message.left
        return latest

    def _record_wait(self, rank: int, ins: Instruction, messages: Sequence[_Message], now: float, until: float) -> None:
        """Only the part in which the data was on the wire is exposed communication; before it is a bubble."""
        start = until
        for message in messages:
            if message.arrival >= until and message.start < start:
                start = message.start
        self.spans.append(tuple.__new__(Span, (rank, "wait", ins, max(start, now), until)))

    # Everything that is neither computation nor a message

    def _rest(self, rank: int, ins: Instruction, now: float) -> float:
        """When the rank can go on; negative where it must be woken."""
        op = ins.op
        if op is Op.REDUCE or op is Op.REDUCE_TIED:
            self._join(ins, now)
            return now
        if op is Op.AWAIT:
            found = self.sums[ins.name]
            if found.end < 0:
                found.waiters.append(rank)
                return _NOT_YET
            if found.end > now:
                start = max(now, found.start)
                self.spans.append(Span(rank, "wait", ins, start, found.end))
            return max(now, found.end)
        if op is Op.STEP:
            cost = self.times.step(rank, ins.name)
            shared = self.hosts[rank]
            if shared is not None:
                return self._start_shared(rank, shared, now, cost, ins)
            self.spans.append(Span(rank, "compute", ins, now, now + cost))
            return now + cost
        together = self._meet(rank, now, op, self.num_ranks)
        return together if together < 0 else together + self.times.meeting

    def _join(self, ins: Instruction, now: float) -> None:
        bucket = ins.name
        found = self.sums[bucket]
        found.joined += 1
        found.ready = max(found.ready, now)
        ranks = self.program.bucket_by_name[bucket].ranks
        if found.joined < len(ranks):
            return
        seconds, channels = self.times.reduce(bucket)
        found.start = max([found.ready, *(self.channel_free[channel] for channel in channels)])
        found.end = found.start + seconds
        for channel in channels:
            self.channel_free[channel] = found.end
        for member in ranks:
            self.spans.append(Span(member, "reduce", ins, found.start, found.end))
        for waiter in found.waiters:
            heappush(self.heap, (now, waiter))

    def _working(self, stage: int, micro_batch: int) -> int:
        return sum(last > first for first, last in self.program.stages[stage].rows[micro_batch])

    def _meet(self, rank: int, now: float, where: object, size: int) -> float:
        """The time at which all have come; negative for all but the last, who wakes the others."""
        arrived = self.meetings.setdefault(where, {})
        if len(arrived) < size:
            arrived[rank] = now
            if len(arrived) < size:
                return _NOT_YET
            for other in arrived:
                if other != rank:
                    heappush(self.heap, (now, other))
        return max(arrived.values())

    # Devices that share cores

    def _start_shared(self, rank: int, host: SharedHost, now: float, cost: float, ins: Instruction) -> float:
        host.start(rank, now, cost, ins)
        heappush(self.heap, (host.next_end(), host.event))
        return _STARTED

    def _host_event(self, host: SharedHost, now: float) -> None:
        if now != host.scheduled:
            return  # others have started since: a later event took this one's place
        for rank, started, ins in host.finish(now):
            self.spans.append(Span(rank, "compute", ins, started, now))
            self.clock[rank] = now
            heappush(self.heap, (now, rank))
        if host.busy:
            heappush(self.heap, (host.next_end(), host.event))
