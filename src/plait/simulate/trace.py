"""Timelines as traces for Perfetto and chrome://tracing. A wait says what it waits for, in name and category."""

from collections.abc import Iterable, Sequence
from typing import Any

from plait.simulate.exposed import cause_of
from plait.simulate.timeline import Span, Timeline

_LANES = ("compute", "wait", "send", "reduce")


def chrome_trace(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Several timelines on one axis, in the format Perfetto and chrome://tracing open."""
    events: list[dict[str, Any]] = []
    for process, timeline in enumerate(timelines):
        events.append(_name("process_name", process, 0, timeline.source))
        for rank in range(timeline.num_ranks):
            for offset, lane in enumerate(_LANES):
                thread = rank * len(_LANES) + offset
                events.append(_name("thread_name", process, thread, f"rank {rank} {lane}"))
                events.append(
                    {
                        "ph": "M",
                        "name": "thread_sort_index",
                        "pid": process,
                        "tid": thread,
                        "args": {"sort_index": thread},
                    }
                )
        events += _events(process, timeline.spans)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _events(process: int, spans: Iterable[Span]) -> Iterable[dict[str, Any]]:
    for span in spans:
        yield {
            "ph": "X",
            "name": f"wait for {cause_of(span.what)}: {span.label}" if span.lane == "wait" else span.label,
            "cat": f"wait,{cause_of(span.what)}" if span.lane == "wait" else span.lane,
            "pid": process,
            "tid": span.rank * len(_LANES) + _LANES.index(span.lane),
            "ts": span.start * 1e6,
            "dur": (span.end - span.start) * 1e6,
            "args": {"stage": span.what.stage, "micro_batch": span.what.micro_batch},
        }


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
