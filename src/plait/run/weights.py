"""Weights in files, by name: safetensors, a folder of them (Hugging Face's index or none), torch.save's files.

Only the tensors asked for are read: both formats are mapped into memory. Nothing is unpickled but tensors and plain
containers (torch.load's `weights_only`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from plait.errors import PlaitError

_FORMATS = "a .safetensors file, a file that torch.save wrote from a state_dict, or a folder of such files"
_LISTED = 3


@dataclass(frozen=True)
class Entry:
    """A tensor in a file, described without being read."""

    shape: tuple[int, ...]
    is_float: bool
    read: Callable[[], Tensor]


@dataclass(frozen=True)
class Wanted:
    """A tensor of the model: every name it goes by, its first one first."""

    names: tuple[str, ...]
    like: Tensor
    required: bool


@dataclass(frozen=True)
class Weights:
    """What a model takes from a file: entries by the first name of the model's tensor."""

    entries: Mapping[str, Entry]
    notes: tuple[str, ...] = field(default=())

    def read(self, name: str, like: Tensor) -> Tensor:
        """A tensor of its own, in the precision of `like`."""
        return self.entries[name].read().to(like.dtype, copy=True)


def find_weights(path: Path | str, wanted: Sequence[Wanted]) -> Weights:
    """Finds every tensor of a model in `path`; PlaitError names what is missing or does not fit."""
    path = Path(path)
    found = _entries(path)
    prefix = _prefix(found, wanted)
    entries: dict[str, Entry] = {}
    missing: list[str] = []
    for tensor in wanted:
        present = [prefix + name for name in tensor.names if prefix + name in found]
        if present:
            _check_fits(path, present[0], found[present[0]], tensor.like)
            _check_tied(path, present, found)
            entries[tensor.names[0]] = found[present[0]]
        elif tensor.required:
            missing.append(tensor.names[0])
    if missing:
        raise PlaitError(_missing_message(path, missing, sum(t.required for t in wanted), list(found)))
    known = {prefix + name for tensor in wanted for name in tensor.names}
    return Weights(entries, tuple(_notes(path, prefix, [name for name in found if name not in known])))


def _entries(path: Path) -> dict[str, Entry]:
    if path.is_file():
        return _file_entries(path)
    if not path.is_dir():
        raise PlaitError(f"weights {path}: there is no such file or folder. Give {_FORMATS}.")
    if (path / "plait.json").is_file():  # a checkpoint of Plait's own
        path = path / "model"
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (path / index).is_file():
            return _indexed_entries(path / index)
    files = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    if not files:
        raise PlaitError(f"weights {path}: the folder has no .safetensors file and no index. Give {_FORMATS}.")
    found: dict[str, Entry] = {}
    for file in files:
        for name, entry in _file_entries(file).items():
            if name in found:
                raise PlaitError(f"weights {path}: {name} is in several of its files. Give the one file that is meant.")
            found[name] = entry
    return found


def _indexed_entries(index: Path) -> dict[str, Entry]:
    try:
        places: dict[str, str] = json.loads(index.read_text())["weight_map"]
        files = {name: _file_entries(index.parent / name) for name in sorted(set(places.values()))}
        return {name: files[file][name] for name, file in places.items()}
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        if isinstance(error, PlaitError):
            raise
        raise PlaitError(
            f"weights index {index} does not agree with its files: {type(error).__name__}: {error}. It must have a "
            "`weight_map` from every tensor's name to a file beside it that holds it; save the folder again."
        ) from error


def _file_entries(path: Path) -> dict[str, Entry]:
    return _safetensors_entries(path) if path.suffix == ".safetensors" else _torch_entries(path)


def _safetensors_entries(path: Path) -> dict[str, Entry]:
    try:
        file = safe_open(path, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise PlaitError(f"weights {path} cannot be read as safetensors: {error}. Give {_FORMATS}.") from error

    def entry(name: str) -> Entry:
        described = file.get_slice(name)
        is_float = "F" in described.get_dtype()  # F32, BF16, F8_E4M3
        return Entry(tuple(described.get_shape()), is_float, lambda: file.get_tensor(name))

    return {name: entry(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping


def _torch_entries(path: Path) -> dict[str, Entry]:
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise PlaitError(
            f"weights {path} cannot be read as tensors alone: {reason} Give {_FORMATS} "
            "(torch.save(model.state_dict(), FILE) with any PyTorch since 1.6)."
        ) from error
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        holds = f"a dictionary of {', '.join(map(str, list(content)[:6]))}" if isinstance(content, dict) else "no dict"
        raise PlaitError(
            f"weights {path} must hold a state_dict, names to tensors, but it holds {holds}. Save that part of it by "
            "itself: torch.save(torch.load(FILE)[KEY], NEW_FILE)."
        )
    return {name: _in_memory(tensor) for name, tensor in content.items()}


def _in_memory(tensor: Tensor) -> Entry:
    return Entry(tuple(tensor.shape), tensor.is_floating_point(), lambda: tensor)


def _prefix(found: Mapping[str, Entry], wanted: Sequence[Wanted]) -> str:
    """What stands before every name in the file, as wrappers leave it there; none where that is not certain."""
    required = [tensor for tensor in wanted if tensor.required]
    if not required or any(name in found for tensor in wanted for name in tensor.names):
        return ""
    ends = required[0].names
    candidates = {name.removesuffix(end) for name in found for end in ends if name.endswith(f".{end}")}
    whole = [p for p in candidates if all(any(p + name in found for name in t.names) for t in required)]
    return whole[0] if len(whole) == 1 else ""


def _check_fits(path: Path, name: str, entry: Entry, like: Tensor) -> None:
    if entry.shape != tuple(like.shape):
        raise PlaitError(
            f"weights {path}: {name} has shape {entry.shape}, but the model's has {tuple(like.shape)}: they are of "
            "another model, or of another configuration of it."
        )
    if entry.is_float != like.is_floating_point():
        kinds = ("floating-point numbers", "whole numbers")
        there, here = kinds if entry.is_float else reversed(kinds)
        raise PlaitError(f"weights {path}: {name} holds {there}, but the model's holds {here}. Save it as those.")


def _check_tied(path: Path, present: Sequence[str], found: Mapping[str, Entry]) -> None:
    for other in present[1:]:
        if not torch.equal(found[present[0]].read(), found[other].read()):
            raise PlaitError(
                f"weights {path}: {present[0]} and {other} differ, but are one tensor in the model. "
                "Leave out the one that is not meant, or untie them in the model."
            )


def _missing_message(path: Path, missing: Sequence[str], total: int, present: Sequence[str]) -> str:
    near = get_close_matches(missing[0], present, n=1, cutoff=0.3) or list(present[:1])
    hint = f" (the nearest name there is {near[0]})" if near else " (it holds no tensors)"
    return (
        f"weights {path} lack {', '.join(missing[:_LISTED])}{hint}; {len(missing)} of {total} tensors are missing. "
        "Names must be those of the model's state_dict: rename the file's, or build the model they were saved from."
    )


def _notes(path: Path, prefix: str, extra: Sequence[str]) -> list[str]:
    notes = []
    if prefix:
        notes.append(f"weights {path}: every name there begins with {prefix!r}, which was left out.")
    if extra:
        listed = ", ".join(extra[:_LISTED]) + (", …" if len(extra) > _LISTED else "")
        notes.append(f"weights {path}: {len(extra)} tensors there are not the model's and were left alone: {listed}.")
    return notes
