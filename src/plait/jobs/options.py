"""The options behind a job's name, as in `gpt2-tiny?layers=2&dropout=0`: reading and checking them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from plait.errors import PlaitError

Value = str | int | float


@dataclass(frozen=True)
class Option:
    """One thing a user may change about a job; the type of the default is the type of the option."""

    default: int | float
    minimum: float
    below: float = math.inf


class Settings(dict[str, int | float]):
    """Checked values by option name, read with the type their use needs."""

    def whole(self, name: str) -> int:
        """The value of an option that counts something."""
        value = self[name]
        assert isinstance(value, int)
        return value

    def real(self, name: str) -> float:
        """The value of an option that measures something."""
        return float(self[name])


def split_options(spec: str) -> tuple[str, dict[str, Value]]:
    """Split a job's spec into its name and the options as typed.

    >>> split_options("gpt2-tiny?layers=2&dropout=0")
    ('gpt2-tiny', {'layers': '2', 'dropout': '0'})
    """
    name, _, suffix = spec.partition("?")
    options: dict[str, Value] = {}
    for item in filter(None, suffix.split("&")):
        key, equals, value = item.partition("=")
        if not (key and equals and value):
            raise PlaitError(
                f"In job {spec!r}, {item!r} is not an option: options are written NAME=VALUE and joined "
                f"with '&', for example {name}?layers=2&dropout=0 (quote it in a shell)."
            )
        if key in options:
            raise PlaitError(f"In job {spec!r}, option {key!r} is given twice: keep one of them.")
        options[key] = value
    return name, options


def read_options(job: str, allowed: Mapping[str, Option], given: Mapping[str, Value]) -> Settings:
    """Check the given options against the allowed ones and fill in the defaults."""
    for name in given:
        if name not in allowed:
            raise PlaitError(f"Job {job!r} has no option {name!r}: {_listed(allowed)}.")
    return Settings(
        {
            name: _checked(job, name, option, given[name]) if name in given else option.default
            for name, option in allowed.items()
        }
    )


def _listed(allowed: Mapping[str, Option]) -> str:
    if not allowed:
        return "it takes no options"
    return "it has " + ", ".join(f"{name} (default {option.default:g})" for name, option in allowed.items())


def _checked(job: str, name: str, option: Option, value: Value) -> int | float:
    number = _number(option, value)
    # Written so that NaN, which compares false with everything, is refused as well.
    if number is None or not (option.minimum <= number < option.below and math.isfinite(number)):
        raise PlaitError(
            f"Option {name}={value} of job {job!r} is not allowed: it must be {_rule(option)}; "
            f"the default is {option.default:g}."
        )
    return number


def _number(option: Option, value: Value) -> int | float | None:
    try:
        if isinstance(option.default, float):
            return float(value)
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if isinstance(value, str) or number == value else None


def _rule(option: Option) -> str:
    kind = "a number" if isinstance(option.default, float) else "a whole number"
    upper = "" if math.isinf(option.below) else f" and below {option.below:g}"
    return f"{kind} of at least {option.minimum:g}{upper}"
