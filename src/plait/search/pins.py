"""The noun `Pin`: what a user says about cuts, in words.

    cut before M          cut after M           a stage begins (ends) there
    no cut before M       no cut after M        none does
    keep M, M, …                                all of these in one stage
    keep each M                                 each of these in one stage
    stage N = M, M, …                           all of these in stage N, counted from 0

M is a module's path, a pattern or a range over paths, or an atom's name (`graph.names`); several are separated by
commas. The same words serve on the command line, in a file and in Python.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from plait.errors import PlaitError

_FORMS = ("cut before", "cut after", "no cut before", "no cut after", "keep each", "keep")
_WORDS = re.compile(rf"({'|'.join(_FORMS)}) (.+)")
_STAGE = re.compile(r"stage (\d+) ?=(.+)")


@dataclass(frozen=True)
class Pin:
    """One sentence about cuts; `stage` only where `form` is "stage"."""

    form: str
    modules: tuple[str, ...]
    stage: int | None = None

    def __str__(self) -> str:
        start = self.form if self.stage is None else f"stage {self.stage} ="
        return f"{start} {', '.join(self.modules)}"


def parse_pin(text: str) -> Pin:
    """Raises PlaitError where `text` is not such a sentence.

    >>> str(parse_pin("stage 0 = embed,blocks.0-3"))
    'stage 0 = embed, blocks.0-3'
    """
    spoken = " ".join(text.split())
    words, stage = _WORDS.fullmatch(spoken), _STAGE.fullmatch(spoken)
    names = words[2] if words else stage[2] if stage else ""
    modules = tuple(name.strip() for name in names.split(","))
    if not all(modules) or any(" " in name for name in modules):
        raise PlaitError(
            f'the pin "{text}" is none that Plait knows. Write one of: '
            + ", ".join(f'"{form} MODULE"' for form in _FORMS)
            + ', "stage 0 = MODULE"; several modules are separated by commas.'
        )
    if stage:
        return Pin("stage", modules, int(stage[1]))
    assert words is not None
    return Pin(words[1], modules)


def as_pins(pins: Iterable[str | Pin]) -> tuple[Pin, ...]:
    if isinstance(pins, str):
        raise PlaitError(f'pins must be a list, one sentence each; write ["{pins}"].')
    return tuple(pin if isinstance(pin, Pin) else parse_pin(pin) for pin in pins)


def load_pins(path: Path) -> tuple[Pin, ...]:
    """From a TOML file: `pins = ["cut before blocks.2", …]`."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlaitError(f"the pins in {path} cannot be read: {error.strerror}; check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlaitError(f"{path} is not valid TOML: {error}; mend that line (text needs quotes).") from None
    pins = content.get("pins")
    if set(content) != {"pins"} or not isinstance(pins, list) or not all(isinstance(pin, str) for pin in pins):
        raise PlaitError(
            f"{path} must hold one list of sentences and nothing else; write "
            'pins = ["cut before blocks.2", "keep blocks.0, blocks.1"].'
        )
    try:
        return as_pins(pins)
    except PlaitError as error:
        raise PlaitError(f"{path}: {error}") from None
