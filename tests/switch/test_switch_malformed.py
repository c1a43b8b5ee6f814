"""Packets that are wrong are counted and dropped, and do no harm to jobs that run; the C code under sanitizers."""

import os
import random
import shutil
import socket
import struct
import subprocess
from pathlib import Path

import pytest
from switch_help import joined, on_all
from test_switch_sums import check, summands

from plait.switch.daemon import Switch
from plait.switch.plane import DROPPED

DRIVERS = Path(__file__).parent / "native"
SOURCES = Path(__file__).parents[2] / "src" / "plait" / "switch" / "native"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
HEADER = struct.Struct("<IBBBBHHIQQIHbB")
MAGIC = 0x31574C50


def build(driver: str, folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    words = [compiler, "-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I", str(SOURCES)]
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    if subprocess.run([*words, *SANITIZERS, probe, "-o", folder / "probe"], capture_output=True).returncode:
        pytest.skip("this compiler has no sanitizers")
    made = folder / driver
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    linked = [*words, *SANITIZERS, *sources, str(DRIVERS / f"{driver}.c"), "-o", str(made), "-lpthread", "-lm"]
    done = subprocess.run(linked, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return made


def test_a_million_wrong_packets_under_sanitizers(tmp_path: Path) -> None:
    feed = build("feed", tmp_path)
    seed = random.randrange(1, 1 << 30) if os.environ.get("PLAIT_CASES") == "new" else 1
    done = subprocess.run([feed, "1000000", str(seed)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    assert int(done.stdout.split()[0]) >= 1_000_000


def test_switch_and_workers_under_sanitizers(tmp_path: Path) -> None:
    together = build("together", tmp_path)
    for seed in range(1, 4):
        done = subprocess.run([together, str(seed)], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def wrong_packet(draw: random.Random, epoch: int) -> bytes:
    """The epoch and the index of a running job, but not its token; or noise."""
    kind, length = draw.randrange(8), draw.randrange(100)
    head = HEADER.pack(
        MAGIC, kind, draw.randrange(2), draw.randrange(4), 2, draw.randrange(3), draw.randrange(64), epoch,
        draw.randrange(1 << 63), draw.randrange(1 << 20), 1, length, draw.randrange(-128, 128), draw.randrange(256),
    )  # fmt: skip
    packet = head + draw.randbytes(4 * length)
    return packet[: draw.randrange(len(packet))] if draw.random() < 0.2 else packet


def test_a_flood_of_wrong_packets_beside_a_job(switch: Switch) -> None:
    workers, values = joined(switch, 2), summands(2, 3_000_000)
    tensors = [value.clone() for value in values]
    draw = random.Random(8)
    packets = [wrong_packet(draw, switch.status()["jobs"][0]["epoch"]) for _ in range(1000)]
    sent = 0

    def run(number: int) -> None:
        nonlocal sent
        if number < 2:
            workers[number].all_reduce(tensors[number])
            return
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.connect(("127.0.0.1", switch.data_port))
            for _ in range(100):
                for packet in packets:
                    stranger.send(packet)
                sent += len(packets)

    assert on_all(3, run) == [None] * 3
    check(values, tensors, workers[0].elements)
    counters = switch.status()["counters"]
    dropped = sum(counters[name] for name in DROPPED)
    assert 1000 < dropped <= sent
    assert counters["bad key"] and counters["bad job"] and counters["bad length"] and counters["bad kind"]
    handled = ("summed", "answered again", "asked")
    assert counters["received"] == dropped + sum(counters[name] for name in handled)
    chunks = 1 + -(-3_000_000 // workers[0].elements)
    assert counters["completed"] == chunks and counters["summed"] == 2 * chunks
