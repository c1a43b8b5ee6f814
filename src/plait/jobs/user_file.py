"""A job from the user's own `file.py`.

The file defines `model()` and `batches(batch_size)`, and may define `optimizer(params)`,
`loss(outputs, batch)` and the constant `batch_size`.

[Note: every rank draws every batch]
All ranks call `batches` and each keeps its own rows, so all must see the same batches. Plait gives the
file random numbers of its own: torch's CPU generator and the `random` module are seeded alike on every
rank, and swapped out between batches so that what the model draws (dropout differs by rank) cannot shift
them. A file that draws from elsewhere (numpy, the clock, the order of a directory) must see to it itself.
"""

import contextlib
import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from plait.errors import PlaitError
from plait.jobs.job import Batch, Job
from plait.jobs.optimizers import adamw
from plait.jobs.random_numbers import SeparateRandomNumbers

_DEFAULT_BATCH_SIZE = 32
_ARGUMENTS = {
    "model": (),
    "batches": ("batch_size",),
    "optimizer": ("params",),
    "loss": ("outputs", "batch"),
}
_REQUIRED = ("model", "batches")


def load_user_file(name: str, path: Path) -> Job:
    """Run the file and gather its functions into a job; `name` is what the user typed."""
    _check_is_file(path)
    path = path.resolve()
    module = _import_file(path)
    for function, arguments in _ARGUMENTS.items():
        _check_function(path, module, function, arguments)
    return Job(
        name=name,
        model=partial(_build_model, path, module),
        batches=partial(_draw_batches, path, module),
        optimizer=getattr(module, "optimizer", adamw),
        loss=getattr(module, "loss", None),
        batch_size=_read_batch_size(path, module),
        tokens_per_sample=None,
    )


def _check_is_file(path: Path) -> None:
    if path.is_dir():
        raise PlaitError(
            f"Job {path} is a folder, and a job is a .py file: name the file in it, or write hf:{path} if "
            f"the folder holds a Hugging Face config.json."
        )
    if not path.is_file():
        raise PlaitError(f"Job file {path} does not exist (looked in {Path.cwd()}): check the path.")
    if path.suffix != ".py":
        raise PlaitError(f"Job file {path} does not end in .py: a job is Python source; rename it.")


def _import_file(path: Path) -> ModuleType:
    # Unique by path: two files called train.py must not be taken for one another.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    module_name = f"plait_job_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Registered while it runs because dataclasses and pickling look their module up by name.
    sys.modules[module_name] = module
    try:
        with _as_user_code(path, "running the file"):
            spec.loader.exec_module(module)
    except PlaitError:
        del sys.modules[module_name]
        raise
    return module


@contextlib.contextmanager
def _as_user_code(path: Path, action: str) -> Iterator[None]:
    """Let the file import its neighbours, and turn what it raises into one paragraph with its line."""
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        yield
    except PlaitError:
        raise
    except SyntaxError as error:
        place = error.filename or path
        raise PlaitError(
            f"{place}, line {error.lineno}: {error.msg}. Plait could not read this job file; mend that line "
            f"(`python {path}` shows the same error)."
        ) from error
    except (Exception, SystemExit) as error:
        raise PlaitError(
            f"{path}, line {_line_of(error, path)}: {action} raised {type(error).__name__}: {error}. Mend "
            f"that line, or guard code that is not for training with `if __name__ == '__main__':`."
        ) from error
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _line_of(error: BaseException, path: Path) -> int | str:
    """The innermost line of the user's file that led to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return lines[-1] if lines and lines[-1] is not None else "unknown"


def _check_function(path: Path, module: ModuleType, name: str, arguments: tuple[str, ...]) -> None:
    function = getattr(module, name, None)
    written = f"def {name}({', '.join(arguments)})"
    if function is None:
        if name in _REQUIRED:
            raise PlaitError(f"{path} defines no {name}: add `{written}:` at the top level of the file.")
        return
    if not callable(function):
        raise PlaitError(f"{path}: {name} is a {type(function).__name__}, not a function: write `{written}:`.")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", "unknown")
        raise PlaitError(
            f"{path}, line {line}: {name} cannot be called as {name}({', '.join(arguments)}) ({error}): "
            f"write `{written}:` and give any further argument a default."
        ) from error
    except ValueError:
        # Callables without a readable signature (some written in C) are tried when they are needed.
        return


def _read_batch_size(path: Path, module: ModuleType) -> int:
    batch_size = getattr(module, "batch_size", _DEFAULT_BATCH_SIZE)
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise PlaitError(
            f"{path}: batch_size = {batch_size!r} must be a whole number of at least 1, "
            f"for example batch_size = {_DEFAULT_BATCH_SIZE}."
        )
    return batch_size


def _build_model(path: Path, module: ModuleType) -> nn.Module:
    with _as_user_code(path, "model()"):
        model = module.model()
    if not isinstance(model, nn.Module):
        raise PlaitError(f"{path}: model() returned a {type(model).__name__}, not a torch.nn.Module: return the model.")
    return model


def _draw_batches(path: Path, module: ModuleType, batch_size: int, seed: int) -> Iterator[Batch]:
    """Iterate the file's batches under random numbers of their own; see the note at the top."""
    numbers = SeparateRandomNumbers(seed)
    with numbers.in_use(), _as_user_code(path, "batches()"):
        iterable: Iterable[Any] = module.batches(batch_size)
        if not isinstance(iterable, Iterable):
            raise PlaitError(
                f"{path}: batches() returned a {type(iterable).__name__}, which cannot be iterated: yield "
                f"the batches, or return a list, a DataLoader or another iterable."
            )
        iterator = iter(iterable)
    end = object()
    while True:
        with numbers.in_use(), _as_user_code(path, "batches()"):
            batch: Any = next(iterator, end)
        if batch is end:
            return
        yield batch
