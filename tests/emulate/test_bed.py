"""The bed itself: real namespaces, processes and packets. Needs root and iproute2."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from small_case import JOB

from plait.cluster import Aggregator
from plait.emulate.commands import NAMESPACES, BedFailed
from plait.emulate.leftovers import FOLDER, Note, Process, parse_note
from plait.emulate.namespaces import Bed
from plait.emulate.testbed import Emulation, emulate
from plait.emulate.topology import topology
from plait.plan import save_plan
from plait.program import Op
from plait.run.launch import RunFailed
from plait.search import Wishes, find_plans, judged_exactly, with_shared_layers, with_stages_of
from plait.switch import native

INTERFACES = {path.name for path in Path("/sys/class/net").iterdir()}
CROWDED = 0.15  # a shared machine may be busy; bench/fidelity.py has the figures


def namespaces() -> set[str]:
    return {path.name for path in NAMESPACES.glob("plait-*")}


def notes(owner: int) -> dict[str, Note]:
    """What the beds of this process say about themselves; others may have beds of their own."""
    found = {path.name: parse_note(path.read_text()) for path in FOLDER.glob("*.json") if path.exists()}
    return {name: note for name, note in found.items() if note is not None and note.owner.pid == owner}


def strays() -> set[str]:
    """Namespaces of beds that nobody owns."""
    found = (parse_note(path.read_text()) for path in FOLDER.glob("*.json") if path.exists())
    return namespaces() - {name for note in found if note is not None for name in note.namespaces}


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def nothing_is_left() -> bool:
    return not notes(os.getpid()) and not strays() and interfaces() == INTERFACES


def run(small, folder: Path, **wishes: object) -> Emulation:
    plan = small.plan(**wishes)
    return emulate(plan, small.prepared.graph, small.prepared.costs, folder, num_steps=3, force=True)


def test_a_pipeline_of_three_stages_takes_what_is_simulated_and_leaves_nothing(machine, small, tmp_path: Path) -> None:
    found = run(small, tmp_path, stages=3, schedule="1f1b")
    assert abs(found.error) < CROWDED
    assert found.emulated.source == "emulated"
    assert found.emulated.num_ranks == found.plan.num_ranks
    for rank in range(found.plan.num_ranks):
        assert found.emulated.compute_order(rank) == found.simulated.compute_order(rank)
    assert nothing_is_left()


def test_replicas_sum_their_gradients_over_the_wires(machine, small, tmp_path: Path) -> None:
    found = run(small, tmp_path, stages=1, replicas=(4,))
    assert abs(found.error) < 2 * CROWDED
    assert any(span.lane == "reduce" for span in found.emulated.spans)
    assert any(span.what.op is Op.STEP for span in found.emulated.spans)


@pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))
def test_a_switch_sums_gradients_on_their_way(machine, small, tmp_path: Path) -> None:
    prepared = small.prepared
    plan = small.plan(stages=1, replicas=(4,))
    summing = replace(plan.cluster, aggregators=(Aggregator(plan.cluster.switches[0], 64, 8896, 0.98),))
    plan = replace(plan, cluster=summing, sync="passing")
    found = emulate(plan, prepared.graph, prepared.costs, tmp_path, num_steps=3, force=True)
    assert abs(found.error) < 2 * CROWDED
    logs = [path.read_text() for path in (tmp_path / "logs").iterdir()]
    assert len(logs) == 4 and not any("goes over" in log for log in logs)
    assert nothing_is_left()


def test_a_tensor_group_exchanges_over_the_wires(machine, small, tmp_path: Path) -> None:
    prepared = small.prepared
    wishes = Wishes(tensor=2, stages=2, micro_batches=4, schedule="1f1b")
    costs = with_shared_layers(prepared.costs, prepared.model, prepared.cluster, 16, wishes)
    answer = find_plans(prepared.graph, costs, prepared.cluster, batch_size=16, wishes=wishes, budget_seconds=0.5)
    best, *_ = judged_exactly(answer.candidates, prepared.model, replace(prepared.problem, costs=costs, batch_size=16))
    assert all(stage.tensor == 2 and stage.split for stage in best.plan.stages)
    exact = with_stages_of(costs, prepared.model, [best.plan])
    found = emulate(best.plan, prepared.graph, exact, tmp_path, num_steps=3, force=True)
    assert abs(found.error) < 2 * CROWDED
    assert nothing_is_left()


def test_a_bed_carries_packets_at_its_rates_and_runs_any_program(machine, small) -> None:
    layout = topology(small.cluster, range(4))
    with Bed(layout, [20e6] * len(layout.wires)) as bed:
        server = "import socket; s = socket.create_server(('', 5000)); print(1, flush=True); c, _ = s.accept()\n"
        server += "while c.recv(1 << 20): pass\nc.sendall(b'.')"
        client = (
            "import socket, sys, time; c = socket.create_connection((sys.argv[1], 5000)); a = time.perf_counter()\n"
        )
        client += "c.sendall(bytes(6_000_000)); c.shutdown(1); c.recv(1); print(time.perf_counter() - a)"
        far = subprocess.Popen(bed.command(3, [sys.executable, "-c", server]), stdout=subprocess.PIPE)
        assert far.stdout is not None
        far.stdout.readline()
        words = bed.command(0, [sys.executable, "-c", client, layout.vertices[3].address])
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
        far.wait(timeout=10)
    assert float(done.stdout) == pytest.approx(6e6 / 20e6, rel=CROWDED)


def test_two_beds_at_once_do_not_collide(machine, small, tmp_path: Path) -> None:
    found = dict[int, Emulation]()
    plan = small.plan(stages=2, replicas=(1, 1), schedule="1f1b")

    def play(number: int) -> None:
        prepared = small.prepared
        found[number] = emulate(plan, prepared.graph, prepared.costs, tmp_path / str(number), num_steps=3, force=True)

    threads = [threading.Thread(target=play, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=90)
    assert sorted(found) == [0, 1]
    assert all(abs(emulation.error) < 2 * CROWDED for emulation in found.values())
    assert nothing_is_left()


def test_a_bed_that_cannot_be_made_is_put_away(machine, small) -> None:
    layout = topology(small.cluster, range(4))
    with pytest.raises(BedFailed, match="`tc`"), Bed(layout, [0.0] * len(layout.wires)):
        pass
    assert nothing_is_left()


def test_what_a_killed_owner_leaves_is_cleared_by_the_next(machine, small, tmp_path: Path) -> None:
    plan = small.plan(stages=2, replicas=(1, 1), schedule="1f1b")
    save_plan(plan, tmp_path / "plan.json")
    words = [sys.executable, "-m", "plait", "emulate", "plan.json", "--steps", "5000", "--job", JOB, "--force"]
    owner = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        note = _wait_for_note(owner)
        owner.send_signal(signal.SIGKILL)
        owner.wait(timeout=10)
        assert note.namespaces and set(note.namespaces) <= namespaces()
        assert _all_end(note.processes), "ranks outlive their owner"
        layout = topology(small.cluster, range(2))
        with Bed(layout, [20e6] * len(layout.wires)):
            assert not set(note.namespaces) & namespaces()
        assert not notes(owner.pid)
    finally:
        owner.kill()
        owner.wait()


def test_sigterm_puts_everything_away(machine, small, tmp_path: Path) -> None:
    save_plan(small.plan(stages=2, replicas=(1, 1), schedule="1f1b"), tmp_path / "plan.json")
    words = [sys.executable, "-m", "plait", "emulate", "plan.json", "--steps", "5000", "--job", JOB, "--force"]
    owner = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        note = _wait_for_note(owner)
        owner.terminate()
        _, error = owner.communicate(timeout=20)
        assert owner.returncode == 130
        assert "Traceback" not in error
        assert not set(note.namespaces) & namespaces()
        assert _all_end(note.processes)
    finally:
        owner.kill()
        owner.wait()


def test_a_rank_that_dies_ends_the_run_and_is_named(machine, small, tmp_path: Path) -> None:
    failure: list[str] = []

    def play() -> None:
        plan, prepared = small.plan(stages=2, replicas=(1, 1), schedule="1f1b"), small.prepared
        try:
            emulate(plan, prepared.graph, prepared.costs, tmp_path, num_steps=5000, force=True)
        except RunFailed as error:
            failure.append(str(error))

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    note = _wait_for_note(None)
    os.kill(note.processes[-1].pid, signal.SIGKILL)
    thread.join(timeout=20)
    assert failure and "rank 1 failed" in failure[0]
    assert nothing_is_left()


def _wait_for_note(owner: subprocess.Popen[str] | subprocess.Popen[bytes] | None) -> Note:
    """The note of a bed (of this process, where none is named) whose two ranks have been at work for a while."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit and (owner is None or owner.poll() is None):
        for note in notes(owner.pid if owner is not None else os.getpid()).values():
            if len(note.processes) == 3:
                time.sleep(1.0)
                return note
        time.sleep(0.05)
    raise AssertionError("no bed was made")


def _all_end(processes: tuple[Process, ...]) -> bool:
    limit = time.monotonic() + 5
    while any(process.is_alive() for process in processes):
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True
