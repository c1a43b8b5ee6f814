"""Writing what flags asked for: each file whole or not at all, several of them all or none."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plait.errors import PlaitError


@dataclass(frozen=True)
class Output:
    """A file that a flag asked for, and what writes it to a path."""

    path: Path
    flag: str
    write: Callable[[Path], object]

    @property
    def staged(self) -> Path:
        return self.path.with_name(f".{self.path.name}.tmp")


def write_file(path: Path, text: str, *, flag: str) -> None:
    """Writes `text`; where that is not possible, says so as bad input."""
    with all_or_none([Output(path, flag, lambda place: place.write_text(text))]):
        pass


@contextmanager
def all_or_none(outputs: Sequence[Output]) -> Iterator[None]:
    """Writes beside the outputs' places, and puts everything there once the block has ended without an error."""
    try:
        for output in outputs:
            with _as_bad_input(output):
                output.path.parent.mkdir(parents=True, exist_ok=True)
                output.write(output.staged)
        yield
        for output in outputs:
            with _as_bad_input(output):
                output.staged.replace(output.path)
    finally:
        for output in outputs:
            if output.path.parent.is_dir():
                output.staged.unlink(missing_ok=True)


@contextmanager
def _as_bad_input(output: Output) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PlaitError(
            f"cannot write {output.path}: {error.strerror}. Choose another place with {output.flag}."
        ) from error
