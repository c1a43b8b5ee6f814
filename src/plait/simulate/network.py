"""Messages on the links: full duplex; every channel carries one message after the other, first come first served.

[Note: links] A message sets out when sender and receiver are both ready, and comes to the next channel of its route
with its first byte, as packets do: on each it waits for its turn and takes its bytes over that channel's bandwidth. So
a fast link that feeds a slow one is soon free for others, and messages that share a link share its bandwidth in turns.
The last byte is there one latency after it has left the last channel. A gradient sum is ready when all its ranks are
and the sums of these ranks before it are done. It takes its turn on each of its channels, and keeps each busy for what
passes over it.
"""

from collections.abc import Callable, Sequence
from functools import partial
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
        channel_free: Sequence[float] | None = None,
    ) -> None:
        self.messages = script.messages
        self.transfers = _transfers(program, script.loads, plan)
        self.events = events
        self.first_event = first_event
        self.records = records
        self.channel_free = list(channel_free or [0.0] * plan.cluster.num_channels)
        num_moments = 2 * len(script.messages)
        self.ready = [NOT_YET] * num_moments
        self.begun = [NOT_YET] * num_moments
        self.when = [NOT_YET] * num_moments
        self.sleeper = [NOBODY] * num_moments
        self.later: list[int | Callable[[float], None]] = []

    def place_later(self, message: int, ready: float) -> None:
        """Places the message in its turn: when its later side is ready, after whoever is ready before."""
        heappush(self.events, (ready, self.first_event + len(self.later)))
        self.later.append(message)

    def call_later(self, when: float, what: Callable[[float], None]) -> None:
        heappush(self.events, (when, self.first_event + len(self.later)))
        self.later.append(what)

    def go_on(self, event: int, now: float) -> None:
        """With what was put off until now."""
        what = self.later[event - self.first_event]
        if isinstance(what, int):
            self.place(what, now)
        else:
            what(now)

    def place(self, message: int, now: float) -> None:
        """Both sides are ready: the message sets out."""
        self._pass(message, 0, now, now)

    def _pass(self, message: int, hop: int, now: float, end: float) -> None:
        """Its first byte comes to a channel of its way, after it has left those before at `end`.

        Where the channel is taken it comes to the next one only when its turn has come, and others may be there sooner.
        """
        sent = self.messages[message >> 1]
        assert sent is not None
        send, load = sent
        source, hops, latency = self.transfers[load]
        free = self.channel_free
        last = len(hops) - 1
        while hop <= last:
            channel, seconds = hops[hop]
            begun = free[channel]
            if begun < now:
                begun = now
            free[channel] = done = begun + seconds
            if done > end:
                end = done
            if not hop:
                self.begun[message] = begun
            hop += 1
            if begun > now and hop <= last:
                self.call_later(begun, partial(self._pass, message, hop, end=end))
                return
        arrived = end + latency
        self.when[message] = end
        self.when[message + 1] = arrived
        if self.records is not None:
            self.records.append((source, "send", send, self.begun[message], arrived))
        for moment in message, message + 1:
            if self.sleeper[moment] != NOBODY:
                heappush(self.events, (now, self.sleeper[moment]))

    def occupy(self, hops: Hops, ready: float, seconds: float) -> tuple[float, float]:
        """From when to when something uses all these channels, each in its turn and as long as it needs it."""
        free = self.channel_free
        start = end = ready
        for channel, busy in hops:
            begun = max(ready, free[channel])
            free[channel] = begun + busy
            start, end = max(start, begun), max(end, begun + busy)
        return start, max(end, ready + seconds)

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
