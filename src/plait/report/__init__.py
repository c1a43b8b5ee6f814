"""What people look at: terminal tables and Gantt charts, the HTML report."""

from plait.report.exposed import exposed_data, exposed_note, exposed_rows, exposed_table, exposed_warning
from plait.report.figures import mean_seconds, share, stage_table
from plait.report.gantt import gantt, legend
from plait.report.html import run_report
from plait.report.plans import baseline_table, plan_table, what_if_table
from plait.report.svg import timelines_svg

__all__ = [
    "baseline_table",
    "exposed_data",
    "exposed_note",
    "exposed_rows",
    "exposed_table",
    "exposed_warning",
    "gantt",
    "legend",
    "mean_seconds",
    "plan_table",
    "run_report",
    "share",
    "stage_table",
    "timelines_svg",
    "what_if_table",
]
