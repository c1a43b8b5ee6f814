"""Quantities as people write them ("25 Gbit/s", "40 GiB", "3 us") to SI numbers, and back for printing.

Bits and bytes are told apart (`Gbit/s`, `Gbps`, `Gb/s` against `GB/s`, `GiB/s`); a number without a unit
is refused, because a silent factor of 8 is the commonest mistake in a cluster file.
"""

import math
import re

from plait.errors import PlaitError

_NUMBER_AND_UNIT = re.compile(r"([-+]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\D.*)?")
_DATA_UNIT = re.compile(r"([kmgtp]?)(i?)(bits?|bytes?|b)", re.IGNORECASE)
_RATE_SUFFIX = re.compile(r"(/s|/sec|/second|ps)$", re.IGNORECASE)
_FLOPS_UNIT = re.compile(r"([kmgtpe]?)flops?(/s|/sec|/second|ps)?", re.IGNORECASE)
# Dividing by a whole number rounds once, so "3 us" is exactly 3e-6. The micro sign has two code points.
_PER_SECOND = {"s": 1, "sec": 1, "ms": 10**3, "us": 10**6, "\u00b5s": 10**6, "\u03bcs": 10**6, "ns": 10**9}
_EXPONENT = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}


class UnitError(PlaitError):
    """A quantity that cannot be read: `rule` completes the sentence "NAME = VALUE …"."""

    def __init__(self, name: str, value: object, rule: str) -> None:
        self.value = value
        self.rule = rule
        super().__init__(f"{name} = {as_written(value)} {rule}")


def as_written(value: object) -> str:
    """`value` as it stands in a TOML file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)


def parse_bandwidth(value: object, *, name: str = "bandwidth") -> float:
    """Bytes per second.

    >>> parse_bandwidth("25 Gbit/s"), parse_bandwidth("12.5 GB/s"), parse_bandwidth("1GiB/s")
    (3125000000.0, 12500000000.0, 1073741824.0)
    """
    advice = 'write e.g. "25 Gbit/s" (bits) or "12.5 GB/s" (bytes)'
    number, unit = _split(value, name=name, example='write e.g. "{} Gbit/s"')
    suffix = _RATE_SUFFIX.search(unit)
    data = _DATA_UNIT.fullmatch(unit[: suffix.start()]) if suffix else None
    if suffix is None or data is None:
        raise UnitError(name, value, f'has the unit "{unit}", which is not a rate; {advice}')
    prefix, binary, symbol = data.groups()
    if len(symbol) == 1 and _case_is_careless(unit):
        raise UnitError(name, value, f'has the unit "{unit}", which could be bits or bytes; {advice}')
    bits = symbol == "b" or symbol.lower().startswith("bit")
    return _positive(number * _scale(prefix, binary) / (8 if bits else 1), name=name, value=value)


def parse_bytes(value: object, *, name: str = "memory") -> int:
    """Bytes; `GB` is 10^9 and `GiB` is 2^30.

    >>> parse_bytes("40 GiB"), parse_bytes("16GB")
    (42949672960, 16000000000)
    """
    number, unit = _split(value, name=name, example='write e.g. "{} GiB"')
    data = _DATA_UNIT.fullmatch(unit)
    if data is None or data.group(3).lower().startswith("bit"):
        raise UnitError(
            name,
            value,
            f'has the unit "{unit}", which is not a size in bytes; write e.g. "16 GiB" or "16 GB"',
        )
    prefix, binary, _ = data.groups()
    size = _positive(number * _scale(prefix, binary), name=name, value=value)
    return _positive_int(round(size), name=name, value=value)


def parse_seconds(value: object, *, name: str = "latency") -> float:
    """Seconds; zero needs no unit.

    >>> parse_seconds("3 us"), parse_seconds("0.1 ms"), parse_seconds(0)
    (3e-06, 0.0001, 0.0)
    """
    if value == 0 and not isinstance(value, bool):
        return 0.0
    number, unit = _split(value, name=name, example='write e.g. "{} us"', least="0 or more")
    per_second = _PER_SECOND.get(unit.lower())
    if per_second is None:
        raise UnitError(
            name, value, f'has the unit "{unit}", which is not a time; write e.g. "3 us", "0.1 ms" or "1 s"'
        )
    if number < 0:
        raise UnitError(name, value, 'is negative; a time is 0 or more, write e.g. "3 us"')
    return _finite(number / per_second, name=name, value=value)


def parse_flops(value: object, *, name: str = "flops") -> float:
    """Floating-point operations per second.

    >>> parse_flops("312 TFLOP/s")
    312000000000000.0
    """
    number, unit = _split(value, name=name, example='write e.g. "{} TFLOP/s"')
    match = _FLOPS_UNIT.fullmatch(unit)
    if match is None:
        raise UnitError(name, value, f'has the unit "{unit}", which is not a compute speed; write e.g. "30 TFLOP/s"')
    return _positive(number * _scale(match.group(1), ""), name=name, value=value)


def format_bytes(size: float) -> str:
    """
    >>> format_bytes(16 * 2**30), format_bytes(1_500_000)
    ('16 GiB', '1.43 MiB')
    """
    return _format(size, [(1024.0**power, unit) for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))])


def format_rate(bytes_per_second: float) -> str:
    """
    >>> format_rate(3.125e9)
    '3.12 GB/s'
    """
    return _format(
        bytes_per_second,
        [(1000.0**power, f"{unit}B/s") for power, unit in enumerate(("", "k", "M", "G", "T"))],
    )


def format_flops(flops_per_second: float) -> str:
    """
    >>> format_flops(312e12)
    '312 TFLOP/s'
    """
    return _format(
        flops_per_second,
        [(1000.0**power, f"{unit}FLOP/s") for power, unit in enumerate(("", "k", "M", "G", "T", "P"))],
    )


def format_seconds(seconds: float) -> str:
    """
    >>> format_seconds(3e-6), format_seconds(0.0125), format_seconds(0)
    ('3 us', '12.5 ms', '0 s')
    """
    if seconds == 0:
        return "0 s"
    return _format(seconds, [(1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"), (1.0, "s")])


def _split(value: object, *, name: str, example: str, least: str = "above 0") -> tuple[float, str]:
    """Number and unit; `example` is the fix to offer, with the user's own number put in."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UnitError(name, value, f"is not a quantity; {example.format(25)}")
    text = str(value).strip()
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None:
        raise UnitError(name, value, f"does not start with a number; {example.format(25)}")
    number, unit = match.groups()
    if unit is None and float(number) <= 0:
        raise UnitError(name, value, f"must be {least} and have a unit; {example.format(25)}")
    if unit is None:
        raise UnitError(name, value, f"has no unit; {example.format(number)}")
    return float(number), unit.strip()


def _case_is_careless(unit: str) -> bool:
    """Whether a lone b in `unit` could mean bits or bytes: "gb/s", "GBPS" (but "Gbps" is bits everywhere)."""
    return unit.isupper() or (unit.islower() and not unit.endswith("bps") and unit != "b/s")


def _scale(prefix: str, binary: str) -> float:
    return float((1024 if binary else 1000) ** _EXPONENT[prefix.lower()])


def _finite(number: float, *, name: str, value: object) -> float:
    if not math.isfinite(number):
        raise UnitError(name, value, "is too large to be meant; check the exponent")
    return number


def _positive(number: float, *, name: str, value: object) -> float:
    if number <= 0:
        raise UnitError(name, value, "must be above 0; write the value the hardware really has")
    return _finite(number, name=name, value=value)


def _positive_int(number: int, *, name: str, value: object) -> int:
    if number < 1:
        raise UnitError(name, value, "is less than one byte; check the unit")
    return number


def _format(value: float, units: list[tuple[float, str]]) -> str:
    """Three significant digits in the largest unit that keeps the number at 1 or more."""
    factor, unit = next((pair for pair in reversed(units) if abs(value) >= pair[0]), units[0])
    number = value / factor
    digits = 2 if abs(number) < 10 else 1 if abs(number) < 100 else 0
    text = f"{number:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} {unit}"
