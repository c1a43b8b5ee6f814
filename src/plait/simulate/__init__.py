"""A program read with a clock: event engine, timelines, traces."""

from plait.simulate.engine import simulate, step_seconds
from plait.simulate.timeline import RankSummary, Record, Span, Timeline, chrome_trace

__all__ = ["RankSummary", "Record", "Span", "Timeline", "chrome_trace", "simulate", "step_seconds"]
