"""Reading a profile file, whichever tool wrote it."""

from pathlib import Path

from plait.errors import PlaitError
from plait.graph.profiles.pipedream import DEFAULT_ROWS, parse_pipedream
from plait.graph.profiles.piper import parse_piper
from plait.graph.profiles.profile import Profile


def load_profile(path: Path | str, *, rows: int | None = None) -> Profile:
    """The profile in a file of PipeDream (text) or Piper (JSON).

    `rows` is the batch size a PipeDream profile was measured at, which its file does not say. Raises PlaitError
    where the file cannot be read or says what cannot be.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PlaitError(f"cannot read profile {path}: {error.strerror}. Check the path after --profile.") from error
    except UnicodeDecodeError as error:
        raise PlaitError(
            f"profile {path} is not text. Give a graph.txt of PipeDream's profiler or an input file (JSON) of Piper."
        ) from error
    if text.lstrip().startswith(("{", "[")):
        if rows is not None:
            raise PlaitError(
                f"--profile-batch {rows} does not apply to {path}: Piper's times are per sample. Leave it out."
            )
        return parse_piper(text, path.name)
    return parse_pipedream(text, path.name, rows=rows or DEFAULT_ROWS)
