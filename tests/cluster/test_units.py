"""Quantities with units: what is read, what is refused and why."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.cluster.units import (
    format_bytes,
    format_flops,
    format_rate,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_seconds,
)
from plait.errors import PlaitError


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("25 Gbit/s", 25e9 / 8),
        ("25Gbps", 25e9 / 8),
        ("25 gbps", 25e9 / 8),
        ("25 Gb/s", 25e9 / 8),
        ("25 Gbits/s", 25e9 / 8),
        ("12.5 GB/s", 12.5e9),
        ("12.5 GBps", 12.5e9),
        ("1 GiB/s", 2**30),
        ("1.5e2 MB/s", 150e6),
        ("100 Mbit/sec", 12.5e6),
        (" 1_000 kB/s ", 1e6),
    ],
)
def test_bandwidth_tells_bits_from_bytes(text, bytes_per_second):
    assert parse_bandwidth(text) == bytes_per_second


@pytest.mark.parametrize(
    ("text", "size"),
    [("40 GiB", 40 * 2**30), ("16GB", 16 * 10**9), ("16 gb", 16 * 10**9), ("512 MiB", 2**29)],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3 us", 3e-6),
        ("3 µs", 3e-6),
        ("3 \u03bcs", 3e-6),
        ("0.1 ms", 1e-4),
        ("20ns", 20e-9),
        ("1 s", 1.0),
        (0, 0.0),
    ],
)
def test_times(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["312 TFLOP/s", "312 TFLOPS", "312 tflops", "0.312 PFLOP/s"])
def test_compute_speeds(text):
    assert parse_flops(text) == 312e12


@pytest.mark.parametrize(
    ("parse", "value", "message"),
    [
        (parse_bandwidth, 25, 'bandwidth = 25 has no unit; write e.g. "25 Gbit/s"'),
        (parse_bandwidth, "25", 'bandwidth = "25" has no unit; write e.g. "25 Gbit/s"'),
        (parse_bandwidth, "25 Gbit", 'has the unit "Gbit", which is not a rate'),
        (parse_bandwidth, "25 gb/s", "could be bits or bytes"),
        (parse_bandwidth, "25 GBPS", "could be bits or bytes"),
        (parse_bandwidth, "fast", "does not start with a number"),
        (parse_bandwidth, True, "bandwidth = true is not a quantity"),
        (parse_bandwidth, "0 GB/s", "must be above 0"),
        (parse_bandwidth, 0, "must be above 0"),
        (parse_bandwidth, "-1 GB/s", "must be above 0"),
        (parse_bandwidth, "1e400 GB/s", "too large"),
        (parse_bytes, 16, 'memory = 16 has no unit; write e.g. "16 GiB"'),
        (parse_bytes, "16 G", "not a size in bytes"),
        (parse_bytes, "16 Gbit", "not a size in bytes"),
        (parse_bytes, "0 GB", "must be above 0"),
        (parse_bytes, "0.1 B", "less than one byte"),
        (parse_seconds, 5, 'latency = 5 has no unit; write e.g. "5 us"'),
        (parse_seconds, "5 m", "not a time"),
        (parse_seconds, "-5 us", "is negative"),
        (parse_seconds, -5, "must be 0 or more"),
        (parse_flops, 30, 'flops = 30 has no unit; write e.g. "30 TFLOP/s"'),
        (parse_flops, "30 T", "not a compute speed"),
    ],
)
def test_refusals_say_value_rule_and_fix(parse, value, message):
    with pytest.raises(PlaitError) as caught:
        parse(value)
    assert message in str(caught.value)


@settings(deadline=None)
@given(st.floats(min_value=1, max_value=1e14))
def test_rates_sizes_and_speeds_round_trip_to_three_digits(value):
    assert parse_bandwidth(format_rate(value)) == pytest.approx(value, rel=6e-3)
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=6e-3, abs=0.5)
    assert parse_flops(format_flops(value)) == pytest.approx(value, rel=6e-3)


@settings(deadline=None)
@given(st.floats(min_value=1e-9, max_value=1e5))
def test_times_round_trip_to_three_digits(seconds):
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=6e-3)


@settings(deadline=None)
@given(st.integers(1, 2**50))
def test_whole_bytes_are_read_exactly(size):
    assert parse_bytes(f"{size} B") == size
