"""What JOB means on the command line: a model, its batches, its optimizer and its loss.

A job is a built-in name (`gpt2-tiny`, `resnet50?image=64&classes=10`), a `file.py`, or `hf:DIR` with a
Hugging Face `config.json`. `load_job` turns any of them into one `Job`.
"""

from plait.jobs.builtin import builtin_names
from plait.jobs.job import Batch, Job
from plait.jobs.load import load_job

__all__ = ["Batch", "Job", "builtin_names", "load_job"]
