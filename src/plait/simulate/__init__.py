"""A program read with a clock: event engine, timelines, traces."""

from plait.simulate.engine import simulate, step_seconds
from plait.simulate.exposed import Cause, Exposure, cause_of, exposed_seconds, exposures
from plait.simulate.timeline import RankSummary, Record, Span, Timeline
from plait.simulate.trace import chrome_trace

__all__ = [
    "Cause",
    "Exposure",
    "RankSummary",
    "Record",
    "Span",
    "Timeline",
    "cause_of",
    "chrome_trace",
    "exposed_seconds",
    "exposures",
    "simulate",
    "step_seconds",
]
