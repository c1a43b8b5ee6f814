"""A program read with a clock: event engine, timelines, traces."""

from plait.simulate.engine import simulate
from plait.simulate.timeline import RankSummary, Span, Timeline, chrome_trace

__all__ = ["RankSummary", "Span", "Timeline", "chrome_trace", "simulate"]
