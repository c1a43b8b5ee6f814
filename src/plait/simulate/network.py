"""Messages on the links: full duplex; every channel carries one message after the other, first ready first served.

[Note: links] A message starts when sender and receiver are both ready, and goes on to the next channel of its route
with its first byte, as packets do: on each it waits for its turn and takes its bytes over that channel's bandwidth. So
a fast link that feeds a slow one is soon free for others, and messages that share a link share its bandwidth in turns.
The last byte is there one latency after it has left the last channel. A gradient sum starts when all its channels are
free, and keeps each busy for what passes over it.
"""

from collections.abc import Sequence
from heapq import heappush

from plait.plan import Plan
from plait.program import Program
from plait.simulate.script import Load, Script
from plait.simulate.timeline import Record

Hops = Sequence[tuple[int, float]]  # channels and how long each is busy
NOT_YET = -1.0
NOBODY = -1


class Network:
    """Where every message is. Indices are the message and moment numbers of `script.Part`.

    `ready` is when the first of sender and receiver came to the message, `when` the time of each moment, and
    `sleeper` the rank that waits for it; `events` is the engine's heap.
    """

    def __init__(
        self,
        program: Program,
        script: Script,
        plan: Plan,
        events: list[tuple[float, int]],
        first_event: int,
        records: list[Record] | None,
    ) -> None:
        self.messages = script.messages
        self.transfers = _transfers(program, script.loads, plan)
        self.events = events
        self.first_event = first_event
        self.records = records
        self.channel_free = [0.0] * plan.cluster.num_channels
        num_moments = 2 * len(script.messages)
        self.ready = [NOT_YET] * num_moments
        self.begun = [NOT_YET] * num_moments
        self.when = [NOT_YET] * num_moments
        self.sleeper = [NOBODY] * num_moments
        self.delayed: list[int] = []

    def place_later(self, message: int, ready: float) -> None:
        """Places the message in its turn: when its later side is ready, after whoever is ready before."""
        heappush(self.events, (ready, self.first_event + len(self.delayed)))
        self.delayed.append(message)

    def place_delayed(self, event: int, now: float) -> None:
        self.place(self.delayed[event - self.first_event], now)

    def place(self, message: int, now: float) -> None:
        """Both sides are ready: the transfer is given its time on the links, and who waits for it goes on."""
        sent = self.messages[message >> 1]
        assert sent is not None
        send, load = sent
        source, hops, latency = self.transfers[load]
        start, left = self._pass(hops, now)
        arrived = left + latency
        self.begun[message] = start
        self.when[message] = left
        self.when[message + 1] = arrived
        if self.records is not None:
            self.records.append((source, "send", send, start, arrived))
        for moment in message, message + 1:
            if self.sleeper[moment] != NOBODY:
                heappush(self.events, (now, self.sleeper[moment]))

    def _pass(self, hops: Hops, ready: float) -> tuple[float, float]:
        """From when to when a message is on its way over channels, one after the other."""
        free = self.channel_free
        start = NOT_YET
        begun = end = ready
        for channel, seconds in hops:
            if free[channel] > begun:
                begun = free[channel]
            if start < 0.0:
                start = begun
            free[channel] = done = begun + seconds
            if done > end:
                end = done
        return max(start, 0.0), end

    def occupy(self, hops: Hops, ready: float, seconds: float) -> tuple[float, float]:
        """From when to when something uses all these channels together, each as long as it needs it."""
        free = self.channel_free
        start = max([ready, *(free[channel] for channel, _ in hops)])
        for channel, busy in hops:
            free[channel] = start + busy
        return start, start + seconds

    def on_the_wire(self, moments: Sequence[int], until: float) -> float:
        """Since when the last of these messages, there at `until`, have been under way."""
        start = until
        for moment in moments:
            if self.when[moment | 1] >= until and self.begun[moment & ~1] < start:
                start = self.begun[moment & ~1]
        return start


Transfer = tuple[int, Hops, float]  # source, way, latency


def _transfers(program: Program, loads: Sequence[Load], plan: Plan) -> list[Transfer]:
    cluster, devices = plan.cluster, plan.devices
    found: list[Transfer] = []
    routes: dict[tuple[int, int], tuple[list[tuple[int, float]], float]] = {}
    for source, sink, name, rows in loads:
        ends = devices[source], devices[sink]
        if ends not in routes:
            channels = [(channel, cluster.channel_bandwidth(channel)) for channel in cluster.route(*ends)]
            routes[ends] = channels, cluster.latency(*ends)
        channels, latency = routes[ends]
        size = program.edge_by_name[name].value.num_bytes(rows)
        found.append((source, tuple((channel, size / bandwidth) for channel, bandwidth in channels), latency))
    return found
