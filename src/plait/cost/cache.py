"""Measured costs kept between runs, by graph, device and PyTorch version."""

import hashlib
import json
import os
import platform
import tempfile
from pathlib import Path

import torch

from plait.cost.costs import Costs

_VERSION = 4


def cache_directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "plait"


def cache_key(fingerprint: str, kind: str, rows: tuple[int, int], device: str, neighbours: int) -> str:
    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else platform.processor()
    content = [
        _VERSION,
        fingerprint,
        kind,
        rows,
        neighbours,
        device,
        name,
        platform.machine(),
        torch.__version__,
        torch.get_num_threads(),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]


def load_costs(key: str) -> Costs | None:
    """None where nothing (readable) is cached: a damaged file is measured again, never trusted."""
    try:
        return Costs.from_dict(json.loads((cache_directory() / f"{key}.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def store_costs(key: str, costs: Costs) -> None:
    """Writes beside and renames, so that two runs at once never leave half a file."""
    directory = cache_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=directory, suffix=".tmp", delete=False) as file:
            json.dump(costs.to_dict(), file)
        Path(file.name).replace(directory / f"{key}.json")
    except OSError:
        return  # a read-only home only costs the time to measure again
