"""A plan that does not fit its model, its batch or its cluster is refused before anything runs."""

from dataclasses import replace

import pytest
from small_plans import GRAPH, mixing_graph, plan

from plait.errors import PlaitError
from plait.graph import Atom
from plait.plan import StagePlan, even_stages, validate


def test_a_plan_that_fits_is_accepted():
    validate(plan(), GRAPH)


def test_another_models_plan_is_refused_with_both_fingerprints():
    other = replace(GRAPH, name="other", atoms=(*GRAPH.atoms, Atom("a4", "", ("a4",))))
    with pytest.raises(PlaitError, match=f"{GRAPH.fingerprint}.*other .*{other.fingerprint}.*Plan again"):
        validate(plan(), other)


@pytest.mark.parametrize(("batch_size", "micro_batches"), [(7, 4), (1, 1), (3, 2)])
def test_a_batch_with_fewer_rows_than_micro_batches_times_replicas_is_refused(batch_size, micro_batches):
    with pytest.raises(PlaitError, match=f"batch size {batch_size} is smaller than {micro_batches} micro-batches x 2"):
        validate(plan(batch_size=batch_size, micro_batches=micro_batches), GRAPH)


def test_the_smallest_batch_that_fits_is_accepted():
    validate(plan(batch_size=8, micro_batches=4), GRAPH)


def test_rows_that_depend_on_one_another_may_not_be_split():
    graph = mixing_graph(atom=3, remedy="")
    with pytest.raises(PlaitError, match=r"stage 1 has 2 replicas.*softmax in module head cannot be split: it works"):
        validate(plan(fingerprint=graph.fingerprint), graph)


def test_a_mixer_outside_any_module_is_said_to_be_in_the_model():
    graph = mixing_graph(atom=0, remedy="", module="")
    with pytest.raises(PlaitError, match=r"stage 0 .*softmax in the model cannot be split"):
        validate(plan(fingerprint=graph.fingerprint), graph)


@pytest.mark.parametrize("remedy", ["exchange", "count"])
def test_rows_whose_dependence_has_a_remedy_may_be_split(remedy):
    graph = mixing_graph(atom=3, remedy=remedy)
    validate(plan(fingerprint=graph.fingerprint), graph)


def test_on_one_device_rows_may_depend_on_one_another():
    graph = mixing_graph(atom=3, remedy="")
    validate(plan(fingerprint=graph.fingerprint, stages=even_stages([2], 4, [[0, 1], [2]])), graph)


@pytest.mark.parametrize("devices", [[[0, 1], [1, 2]], [[0, 0], [1, 2]]], ids=["two stages", "one stage twice"])
def test_a_device_given_twice_is_refused(devices):
    with pytest.raises(PlaitError, match=r"device 1 is given to two stages|stage 0 has device 0 twice"):
        validate(plan(stages=even_stages([2], 4, devices)), GRAPH)


@pytest.mark.parametrize("device", [4, -1])
def test_a_device_the_cluster_does_not_have_is_refused(device):
    with pytest.raises(PlaitError, match=f"stage 1 uses device {device}, but cluster local:4 has devices 0 to 3"):
        validate(plan(stages=even_stages([2], 4, [[0, 1], [device]])), GRAPH)


@pytest.mark.parametrize("shares", [(1.0,), (1.0, 0.0), (1.0, -2.0), (float("nan"), 1.0), (float("inf"), 1.0)], ids=str)
def test_shares_must_be_one_positive_number_per_device(shares):
    stages = (StagePlan(0, 4, (0, 1), shares),)
    with pytest.raises(PlaitError, match="one positive number per replica"):
        validate(plan(stages=stages), GRAPH)


@pytest.mark.parametrize(
    "edges",
    [[(0, 2), (3, 4)], [(0, 3), (2, 4)], [(1, 2), (2, 4)], [(0, 2), (2, 3)], [(0, 2), (2, 5)], [(0, 0), (0, 4)]],
)
def test_stages_must_hold_every_atom_once_and_in_order(edges):
    stages = tuple(StagePlan(start, end, (n,), (1.0,)) for n, (start, end) in enumerate(edges))
    with pytest.raises(PlaitError, match="The plan is damaged: plan again"):
        validate(plan(stages=stages), GRAPH)


def test_ranks_are_the_devices_in_use_in_the_clusters_order():
    made = plan(stages=even_stages([2], 4, [[3, 1], [0]]))
    assert made.devices == (0, 1, 3)
    assert made.stage_ranks(0) == (2, 1)
    assert made.num_ranks == 3


def test_stages_may_share_all_their_devices_and_are_then_one_position():
    shared = plan(stages=even_stages([1, 2, 3], 4, [[0, 1], [2, 3], [2, 3], [0, 1]]))
    validate(shared, GRAPH)
    assert shared.positions == ((0, 3), (1, 2))
    assert shared.layout() == "2x2"


def test_stages_that_share_devices_share_their_rows_alike():
    first, second = even_stages([2], 4, [[0, 1], [0, 1]])
    with pytest.raises(PlaitError, match="give them the same"):
        validate(plan(stages=(first, replace(second, shares=(2.0, 1.0)))), GRAPH)
