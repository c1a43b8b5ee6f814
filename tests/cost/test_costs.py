"""Costs as data: sums over atoms, affine in the rows, and the formulas of links."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from plait.cost import AtomCost, Costs, OptimizerCost, ring_all_reduce_seconds, transfer_seconds

amounts = st.floats(0, 1e3)
atoms = st.lists(st.builds(AtomCost, amounts, amounts, amounts, amounts, amounts, amounts), min_size=1, max_size=8)


def costs(atoms: list[AtomCost], kind: str = "cpu") -> Costs:
    return Costs("print", {kind: tuple(atoms)}, {kind: OptimizerCost(2.0, 1e-9, 0.0)}, {kind: "measured"})


@given(atoms, st.data(), st.integers(0, 100))
def test_a_stage_takes_the_sum_of_its_atoms(atoms, data, rows):
    start = data.draw(st.integers(0, len(atoms)))
    end = data.draw(st.integers(start, len(atoms)))
    own = atoms[start:end]
    made = costs(atoms)
    assert made.seconds("cpu", "forward", start, end, rows) == approx(
        sum(a.forward_fixed + a.forward_per_row * rows for a in own), abs=1e-6
    )
    assert made.seconds("cpu", "backward", start, end, rows) == approx(
        sum(a.backward_fixed + a.backward_per_row * rows for a in own), abs=1e-6
    )
    assert made.saved_bytes("cpu", start, end, rows) == approx(
        sum(a.saved_fixed + a.saved_per_row * rows for a in own), abs=1
    )


@given(atoms, amounts, amounts, st.integers(0, 100))
def test_the_two_parts_of_a_backward_are_the_whole(atoms, fixed, per_row, rows):
    made = costs([replace(atom, weight_fixed=fixed, weight_per_row=per_row) for atom in atoms])
    whole, *parts = (made.seconds("cpu", p, 0, len(atoms), rows) for p in ("backward", "input", "weight"))
    assert sum(parts) == approx(whole) and min(parts) >= 0


@given(atoms, st.integers(0, 100))
def test_nothing_ever_takes_less_than_no_time(atoms, rows):
    made = costs(atoms)
    for start in range(len(atoms)):
        assert made.seconds("cpu", "forward", start, start, rows) >= 0
        assert made.seconds("cpu", "forward", start, start + 1, rows) >= 0


@given(atoms)
def test_costs_round_trip_through_json(atoms):
    made = costs(atoms)
    assert Costs.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_costs_of_two_kinds_are_joined():
    atom = AtomCost(0, 1, 0, 2, 0, 3)
    both = costs([atom]).joined(costs([atom], "v100"))
    assert set(both.atoms) == set(both.optimizer) == set(both.source) == {"cpu", "v100"}


def test_a_message_takes_its_latency_and_its_bytes():
    assert transfer_seconds(100, bandwidth=50, latency=0.5) == approx(2.5)


@given(st.integers(2, 64), st.floats(1, 1e9), st.floats(1, 1e9), st.floats(0, 1))
def test_a_ring_moves_each_byte_almost_twice(members, num_bytes, bandwidth, latency):
    seconds = ring_all_reduce_seconds(num_bytes, members, bandwidth, latency)
    assert seconds >= num_bytes / bandwidth  # n = 2 moves it once, more move it up to twice
    assert seconds <= 2 * num_bytes / bandwidth + 2 * members * latency


def test_a_ring_of_one_takes_no_time():
    assert ring_all_reduce_seconds(1e9, 1, 1.0, 1.0) == 0
