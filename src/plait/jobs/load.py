"""From what the user typed as JOB to a `Job`."""

from collections.abc import Mapping
from pathlib import Path

from plait.errors import PlaitError
from plait.jobs.builtin import load_builtin
from plait.jobs.huggingface import load_huggingface
from plait.jobs.job import Job
from plait.jobs.options import Value, split_options
from plait.jobs.user_file import load_user_file

_HUGGINGFACE_PREFIX = "hf:"


def load_job(spec: str, *, options: Mapping[str, Value] = {}) -> Job:
    """Read a built-in name, a `file.py` or `hf:DIR`, with `?option=value&...` behind it.

    Options given as an argument win over those in the spec.

    Raises:
        PlaitError: the job, one of its options, or the file behind it is not as it should be.

    >>> load_job("gpt2-tiny?layers=2", options={"sequence": 64}).tokens_per_sample
    64
    """
    name, typed = split_options(spec)
    merged = {**typed, **options}
    if name.startswith(_HUGGINGFACE_PREFIX):
        return load_huggingface(spec, _path(name.removeprefix(_HUGGINGFACE_PREFIX)), merged)
    if _looks_like_path(name):
        if merged:
            raise PlaitError(
                f"Job {spec!r} is a file and takes no options, but got {', '.join(merged)}: "
                f"set such values in {name} itself."
            )
        return load_user_file(spec, _path(name))
    return load_builtin(spec, name, merged)


def _path(text: str) -> Path:
    # A shell leaves the tilde in `hf:~/model` alone.
    return Path(text).expanduser()


def _looks_like_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name or "\\" in name
