"""Writing what a flag asked for."""

from pathlib import Path

from plait.errors import PlaitError


def write_file(path: Path, text: str, *, flag: str) -> None:
    """Writes `text`; where that is not possible, says so as bad input."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise PlaitError(f"cannot write {path}: {error.strerror}. Choose another place with {flag}.") from error
