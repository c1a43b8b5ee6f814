"""What every bench does the same way: flags, the last line, the result file and the exit code."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def arguments(
    description: str, more: Callable[[argparse.ArgumentParser], object] = lambda parser: None
) -> argparse.Namespace:
    """The flags all benches have, and those that `more` adds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument("--check", action="store_true", help="exit 1 when what the bench claims does not hold")
    more(parser)
    return parser.parse_args()


def finish(name: str, figures: Mapping[str, object], *, rows: object, holds: bool, check: bool) -> None:
    """Writes bench/results/NAME.json, prints the closing line and ends the process."""
    RESULTS.mkdir(exist_ok=True)
    content = {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, torch {torch.__version__}",
        "figures": dict(figures),
        "holds": holds,
        "rows": rows,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    print(f"{name}: " + " ".join(f"{key}={value}" for key, value in figures.items()))
    sys.exit(1 if check and not holds else 0)
