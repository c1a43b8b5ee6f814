"""Longest paths of one micro-batch alone on the machines: how early everything can start, how much must follow.

With F, B the computations of a place, x a message, c its seconds and a its latency, e how long before the end of F it
leaves, and S_s the gradient sums of stage s after its last backward:

    forward_start(p)  = max over x into p of forward_start(source) + F - e + c + a                    (`_starts`)
    backward_start(p) = max(forward_start(p) + F, the same over gradients)
    after_backward(p) = max(S_s, max over gradients x from p of c + a + B(sink) + after_backward(sink))  (`_afters`)
    after_forward(p)  = max(B + after_backward(p), max over x from p of c + a - e + F(sink) + after_forward(sink))
    between(p)        = max over x from p of 2 (c + a) - e + F(sink) + between(sink) + B(sink)          (`_between`)

Messages to (or from) one place that share a channel take turns there, so of n of them over one channel the last
arrives no earlier than min ready + sum of c + min a. Ranks of a coupled stage start a computation together, when the
last of them can. No order of micro-batches makes anything earlier or later than these: contention only adds.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.search.bounds.passage import Message, Passage


@dataclass(frozen=True)
class Paths:
    """By place."""

    forward_start: Sequence[float]
    backward_start: Sequence[float]
    after_forward: Sequence[float]
    after_backward: Sequence[float]
    between: Sequence[float]


def longest_paths(passage: Passage, sums: Sequence[float]) -> Paths:
    """`sums` are the seconds of each stage's gradient sums."""
    into: list[list[Message]] = [[] for _ in passage.rows]
    out: list[list[Message]] = [[] for _ in passage.rows]
    for message in passage.messages:
        into[message.sink].append(message)
        out[message.source].append(message)
    forward_start, backward_start = _starts(passage, into, out)
    after_forward, after_backward = _afters(passage, into, out, sums)
    return Paths(forward_start, backward_start, after_forward, after_backward, _between(passage, out))


Messages = Sequence[Sequence[Message]]


def _starts(passage: Passage, into: Messages, out: Messages) -> tuple[list[float], list[float]]:
    forward, backward = [0.0] * len(passage.rows), [0.0] * len(passage.rows)
    for stage, places in enumerate(passage.working):
        for place in places:
            forward[place] = _turns(
                into[place], lambda x: forward[x.source] + passage.forward[x.source] - x.early, _latency
            )
        _together(passage, stage, forward)
    for stage in reversed(range(len(passage.working))):
        for place in passage.working[stage]:
            gradients = [x for x in out[place] if x.gradient]
            arrival = _turns(gradients, lambda x: backward[x.sink] + passage.backward[x.sink], _latency)
            backward[place] = max(forward[place] + passage.forward[place], arrival)
        _together(passage, stage, backward)
    return forward, backward


def _afters(passage: Passage, into: Messages, out: Messages, sums: Sequence[float]) -> tuple[list[float], list[float]]:
    after_forward, after_backward = [0.0] * len(passage.rows), [0.0] * len(passage.rows)
    # From the start of a computation to the end of everything; in a coupled stage from the common start.
    from_forward, from_backward = [0.0] * len(passage.rows), [0.0] * len(passage.rows)
    for stage, places in enumerate(passage.working):
        for place in places:
            gradients = [x for x in into[place] if x.gradient]
            follows = _turns(gradients, _at_once, lambda x: x.latency + from_backward[x.source])
            after_backward[place] = max(follows, passage.weights[place] + sums[stage])
            from_backward[place] = passage.backward[place] + after_backward[place]
        _together(passage, stage, from_backward)
    for stage in reversed(range(len(passage.working))):
        for place in passage.working[stage]:
            follows = _turns(out[place], lambda x: -x.early, lambda x: x.latency + from_forward[x.sink])
            after_forward[place] = max(follows, from_backward[place])
            from_forward[place] = passage.forward[place] + after_forward[place]
        _together(passage, stage, from_forward)
    return after_forward, after_backward


def _between(passage: Passage, out: Messages) -> list[float]:
    """From the end of a place's forward to the start of its backward, along the same places there and back."""
    between = [0.0] * len(passage.rows)
    for places in reversed(passage.working):
        for place in places:
            for x in out[place]:
                if x.gradient:
                    there = passage.forward[x.sink] + between[x.sink] + passage.backward[x.sink]
                    between[place] = max(between[place], there + 2 * (x.seconds + x.latency) - x.early)
    return between


def _turns(messages: Sequence[Message], before: Callable[[Message], float], after: Callable[[Message], float]) -> float:
    """When the last has arrived and what follows it is over, if those of one channel take turns."""
    latest = 0.0
    shared: defaultdict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for x in messages:
        ready, follows = before(x), after(x)
        latest = max(latest, ready + x.seconds + follows)
        if len(messages) > 1:
            for channel, seconds in x.hops:
                shared[channel].append((ready, seconds, follows))
    for group in shared.values():
        all_ready, all_seconds, all_follows = zip(*group, strict=True)
        latest = max(latest, min(all_ready) + sum(all_seconds) + min(all_follows))
    return latest


def _latency(message: Message) -> float:
    return message.latency


def _at_once(_: Message) -> float:
    return 0.0


def _together(passage: Passage, stage: int, times: list[float]) -> None:
    """Ranks of a coupled stage wait for one another."""
    if passage.coupled[stage] and passage.working[stage]:
        latest = max(times[place] for place in passage.working[stage])
        for place in passage.working[stage]:
            times[place] = latest
