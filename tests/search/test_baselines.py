"""The classical planners: what they answer where the answer is known, and that whatever they answer can run."""

from dataclasses import replace

import pytest
from baseline_chains import hosts, problem, problems
from hypothesis import given, settings

from plait.errors import PlaitError
from plait.graph import RowMixer
from plait.plan import validate
from plait.program import check_memory, check_program, compile_program, predict_memory
from plait.search import evaluate
from plait.search.baselines import BASELINES, baseline, compare
from plait.search.baselines.even_split import layer_edges
from plait.search.problem import Problem


@pytest.mark.parametrize("name", BASELINES)
@given(asked=problems())
@settings(max_examples=30, deadline=None)
def test_every_plan_computes_the_gradients_and_fits(name: str, asked: Problem) -> None:
    try:
        plan = BASELINES[name](asked)
    except PlaitError as error:
        assert name.split("-")[0] in str(error) or "too little" in str(error)
        return
    assert (plan.cluster, plan.batch_size) == (asked.cluster, asked.batch_size)
    assert plan.micro_batches == (asked.micro_batches or plan.micro_batches)
    validate(plan, asked.graph)
    program = compile_program(plan, asked.graph)
    check_program(program)
    check_memory(predict_memory(program, plan, asked.graph, asked.costs), plan)


@given(asked=problems())
@settings(max_examples=30, deadline=None)
def test_where_something_fits_one_device_per_stage_or_a_grid_does(asked: Problem) -> None:
    found = compare(replace(asked, micro_batches=None), ["1f1b", "data-parallel", "grid"])
    if found["1f1b"].step_seconds is not None or found["data-parallel"].step_seconds is not None:
        assert found["grid"].step_seconds is not None


def test_compare_judges_each_by_the_simulator() -> None:
    asked = problem(hosts(2, 2), [0.01] * 8)
    found = compare(asked)
    assert list(found) == list(BASELINES)
    for judged in found.values():
        assert judged.plan is not None and judged.why == ""
        assert judged.step_seconds == evaluate(judged.plan, asked.graph, asked.costs).step_seconds


def test_one_that_does_not_fit_says_why_and_leaves_the_others_their_times() -> None:
    asked = problem(hosts(4, memory="10 kB"), [0.01] * 4, weights=1000)  # 16 kB of state; a quarter fits
    found = compare(asked, ["data-parallel", "1f1b"])
    assert found["data-parallel"].step_seconds is None and found["data-parallel"].plan is None
    assert "memory" in found["data-parallel"].why
    assert found["1f1b"].step_seconds is not None


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(PlaitError, match="choose among data-parallel"):
        baseline("zero")


# Data parallel


def test_data_parallel_takes_one_micro_batch_where_it_fits() -> None:
    plan = BASELINES["data-parallel"](problem(hosts(2, 2), [0.01] * 4))
    assert (plan.layout(), plan.micro_batches) == ("1x4", 1)


def test_data_parallel_takes_as_few_micro_batches_as_memory_needs() -> None:
    asked = problem(hosts(2, memory="1 MB"), [0.01], weights=1000, saved=300_000, batch_size=16)
    plan = BASELINES["data-parallel"](asked)
    assert plan.micro_batches == 3  # 8 rows a device, at most 3 of them at once
    with pytest.raises(PlaitError, match="memory"):
        BASELINES["data-parallel"](replace(asked, micro_batches=2))


def test_a_loss_that_cannot_be_split_leaves_no_data_parallel_plan() -> None:
    asked = problem(hosts(2), [0.01] * 2)
    mixer = RowMixer(1, "n1", "head", "it works along the batch dimension", "")
    graph = replace(asked.graph, row_mixers=(mixer,))
    found = compare(replace(asked, graph=graph))
    assert "cannot be split" in found["data-parallel"].why
    assert found["dapple"].plan is not None and found["pipedream"].plan is not None


# Even splits


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_even_splits_have_a_device_per_stage_and_the_least_bottleneck(name: str) -> None:
    plan = BASELINES[name](problem(hosts(3), [0.01, 0.01, 0.01, 0.01, 0.02, 0.03]))
    assert [stage.devices for stage in plan.stages] == [(0,), (1,), (2,)]
    assert [stage.end for stage in plan.stages] == [3, 5, 6] or [stage.end for stage in plan.stages] == [4, 5, 6]
    assert plan.schedule == name


def test_layers_are_modules_up_to_the_first_number() -> None:
    asked = problem(hosts(2), [0.01] * 6)
    modules = ("embedding", "blocks.0.norm", "blocks.0.mlp", "blocks.1.norm", "blocks.1.mlp", "head")
    atoms = tuple(replace(atom, module=module) for atom, module in zip(asked.graph.atoms, modules, strict=True))
    assert layer_edges(replace(asked.graph, atoms=atoms)).tolist() == [0, 1, 3, 5, 6]


def test_cuts_between_layers_are_taken_where_cuts_inside_send_too_much() -> None:
    asked = problem(hosts(2, inside="1 MB/s"), [0.01] * 5, sent=[10**5, 10, 10**5, 10**5, 10])
    atoms = tuple(replace(a, module=f"blocks.{int(n > 1)}.x") for n, a in enumerate(asked.graph.atoms))
    graph = replace(asked.graph, atoms=atoms)
    asked = replace(asked, graph=graph, costs=replace(asked.costs, fingerprint=graph.fingerprint))
    assert BASELINES["1f1b"](asked).stages[0].end == 2


def test_a_chain_shorter_than_the_cluster_leaves_devices_idle() -> None:
    assert BASELINES["1f1b"](problem(hosts(4), [0.01] * 2)).layout() == "2x1"


def test_of_the_micro_batch_counts_the_best_is_taken() -> None:
    asked = problem(hosts(3), [0.01] * 6)
    times = {}
    for count in (1, 2, 4, 8, 16):
        times[count] = compare(replace(asked, micro_batches=count), ["1f1b"])["1f1b"].step_seconds
    plan = BASELINES["1f1b"](asked)
    assert times[plan.micro_batches] == min(times.values())


def test_gpipe_holds_all_micro_batches_where_1f1b_holds_few() -> None:
    asked = problem(hosts(2, memory="1 MB"), [0.01, 0.01], weights=1000, saved=100_000, batch_size=16)
    found = compare(asked, ["gpipe", "1f1b"])
    assert found["gpipe"].plan is None and found["1f1b"].plan is not None


# Grid


def test_the_grid_finds_the_best_of_all_grids() -> None:
    asked = problem(hosts(2, 2, across="1 MB/s"), [0.01] * 4, weights=100_000, sent=1000)
    plan = BASELINES["grid"](asked)
    best = evaluate(plan, asked.graph, asked.costs).step_seconds
    for stages, replicas in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)):
        for count in (1, 2, 4, 8, 16):
            if count * replicas <= asked.batch_size:
                edges = [4 * stage // stages for stage in range(stages + 1)]
                other = replace(
                    plan,
                    micro_batches=count,
                    schedule="1f1b",
                    stages=tuple(
                        replace(
                            plan.stages[0],
                            start=edges[s],
                            end=edges[s + 1],
                            devices=tuple(range(s * replicas, (s + 1) * replicas)),
                            shares=(1.0,) * replicas,
                        )
                        for s in range(stages)
                    ),
                )
                assert best <= evaluate(other, asked.graph, asked.costs).step_seconds * (1 + 1e-9)
    assert plan.layout() == "2x2"


def test_the_grid_keeps_data_parallel_groups_inside_hosts() -> None:
    plan = BASELINES["grid"](problem(hosts(2, 2, across="1 MB/s"), [0.01] * 4, weights=100_000, sent=1000))
    assert {stage.devices for stage in plan.stages} == {(0, 1), (2, 3)}


def test_the_grid_interleaves_where_that_is_better() -> None:
    asked = problem(hosts(4, inside="100 GB/s"), [0.01] * 8, weights=10**9, batch_size=8)
    plan = BASELINES["grid"](asked)
    assert (plan.schedule, plan.layout()) == ("interleaved", "4x1")
    assert [stage.devices for stage in plan.stages] == [(0,), (1,), (2,), (3,)] * 2
