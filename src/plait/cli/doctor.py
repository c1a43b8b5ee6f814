"""`plait doctor`: what works on this machine, what is missing and what to do about it."""

import importlib.util
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import typer
from rich.console import Console
from rich.table import Table

from plait.emulate.commands import missing
from plait.switch import native


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `fix` is empty where all is well; `required` means that nothing works without it."""

    what: str
    found: str
    fix: str = ""
    required: bool = False


def command() -> None:
    """Say what works on this machine and what is missing; exit 1 if something required is."""
    findings = [check() for check in _CHECKS]
    table = Table(title="Plait on this machine", title_justify="left")
    for name in ("", "what", "found", "what to do"):
        table.add_column(name)
    for finding in findings:
        mark = "[green]✓[/]" if not finding.fix else "[red]✗[/]" if finding.required else "[yellow]-[/]"
        table.add_row(mark, finding.what, finding.found, finding.fix)
    Console().print(table)
    raise typer.Exit(1 if any(finding.fix and finding.required for finding in findings) else 0)


def _python() -> Finding:
    fix = "" if sys.version_info >= (3, 11) else "install Python >= 3.11"
    return Finding("Python", platform.python_version(), fix, required=True)


def _torch() -> Finding:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    fix = "" if (major, minor) >= (2, 11) else "pip install 'torch>=2.11'"
    return Finding("PyTorch", torch.__version__, fix, required=True)


def _gloo() -> Finding:
    fix = "" if dist.is_available() and dist.is_gloo_available() else "install a PyTorch built with torch.distributed"
    return Finding("ranks on CPUs (gloo)", "yes" if not fix else "no", fix, required=True)


def _cuda() -> Finding:
    if not torch.cuda.is_available():
        return Finding("GPUs", "none", "runs on the CPU; plans for GPUs are made from presets")
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return Finding("GPUs", names)


def _nccl() -> Finding:
    if not torch.cuda.is_available():
        return Finding("ranks on GPUs (NCCL)", "no GPU", "not needed without GPUs")
    fix = "" if dist.is_nccl_available() else "install a PyTorch with NCCL; until then tensors go through host memory"
    return Finding("ranks on GPUs (NCCL)", "yes" if not fix else "no", fix)


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("cores", str(cores), "" if cores > 1 else "local ranks will take turns on one core")


def _transformers() -> Finding:
    found = importlib.util.find_spec("transformers") is not None
    return Finding("jobs hf:DIR (transformers)", "yes" if found else "no", "" if found else "pip install 'plait[hf]'")


def _namespaces() -> Finding:
    lack = missing()
    return Finding("emulated clusters", "no" if lack else "yes", lack)


def _switch() -> Finding:
    lack = native.missing()
    return Finding("in-network sums (plait switch)", "no" if lack else "yes", lack or "")


_CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _torch,
    _gloo,
    _cores,
    _cuda,
    _nccl,
    _transformers,
    _namespaces,
    _switch,
)
