"""What people look at: terminal tables and Gantt charts, the HTML report."""

from plait.report.figures import mean_seconds, plan_table, share, stage_table
from plait.report.gantt import gantt, legend
from plait.report.html import run_report
from plait.report.svg import timelines_svg

__all__ = ["gantt", "legend", "mean_seconds", "plan_table", "run_report", "share", "stage_table", "timelines_svg"]
