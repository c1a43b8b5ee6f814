"""Tables in the terminal, and the report's pictures."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from rich.console import Console
from test_pictures import timeline

from plait.cluster import local_cluster
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.graph import Atom, Graph, Parameter, Value
from plait.plan import Plan, StagePlan
from plait.report import baseline_table, plan_table, run_report, stage_table, what_if_table
from plait.report.plans import Changed, distinct, idle_devices, idle_words, layout_words
from plait.report.reasons import Reason
from plait.search import Answer, Wishes, find_plans
from plait.search.baselines import Judged


@pytest.fixture
def graph() -> Graph:
    return Graph(
        "a [tiny] job",
        tuple(Atom(f"block.{i}", "", (f"n{i}",)) for i in range(4)),
        tuple(Value(f"n{i}", i, (i + 1,), (1, 8), "float32", 0, True) for i in range(3)),
        tuple(Parameter(f"p{i}", (10,), "float32", (i,), True, False) for i in range(4)),
    )


@pytest.fixture
def answer(graph: Graph) -> Answer:
    atoms = (AtomCost(0.001, 0.01, 0.001, 0.02, 0.0, 1000.0),) * 4
    costs = Costs(graph.fingerprint, {"cpu": atoms}, {"cpu": OptimizerCost(2.0, 0.0, 0.0)}, {"cpu": "made up"})
    return find_plans(graph, costs, local_cluster(2), batch_size=8, wishes=Wishes(stages=2), budget_seconds=1.0)


def shown(table: object, width: int = 80) -> list[str]:
    console = Console(width=width, file=None, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def test_the_plan_table_has_a_row_per_distinct_plan_best_first(answer: Answer) -> None:
    lines = shown(plan_table(answer, most=3))
    assert "a [tiny] job" in lines[0]
    rows = [line.split() for line in lines if re.match(r" (best|\d) ", line)]
    assert len(rows) == min(3, len(distinct(answer))) > 1
    assert rows[0][0] == "best" and rows[0][1:4] == row_of(answer.best.plan)
    assert len({tuple(row[1:5]) for row in rows}) == len(rows), "no two look alike"
    assert all(re.search(r"( \+?[\d.]+%){2} \d+% \d+% \d+%$", " ".join(row)) for row in rows)


def row_of(plan: Plan) -> list[str]:
    return [layout_words(plan), str(plan.micro_batches), plan.schedule]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_plan_table_fits_the_terminal(answer: Answer, width: int) -> None:
    lines = shown(plan_table(answer, width=width), width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines), "nothing is cut short"
    assert any("MiB" in line or "KiB" in line for line in lines) == (width >= 100)


def test_eighty_columns_hold_the_longest_words(answer: Answer) -> None:
    groups = [(i,) for i in range(10)] + [(10, 11), (12, 13), (14, 15)]
    stages = tuple(StagePlan(0, 1, group, (1.0,) * len(group)) for group in 2 * groups)
    plan = replace(answer.best.plan, stages=stages, schedule="interleaved", cluster=local_cluster(16))
    wide = replace(answer.best, plan=plan, memory=answer.best.memory[:1] * 16)
    lines = shown(plan_table(replace(answer, candidates=(wide,))))
    assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
    assert any("26 on 10x1+3x2" in line for line in lines)


def test_layouts_count_repeated_positions(answer: Answer) -> None:
    plan = answer.best.plan

    def layout(*replicas: int, stages_each: int = 1) -> str:
        first = [sum(replicas[:i]) for i in range(len(replicas))]
        groups = [tuple(range(a, a + r)) for a, r in zip(first, replicas, strict=True)] * stages_each
        return layout_words(replace(plan, stages=tuple(StagePlan(0, 1, g, (1.0,) * len(g)) for g in groups)))

    assert [layout(1, 1, 2, 2, 2), layout(2, 2), layout(3, 2), layout(1, 1, stages_each=2)] == [
        "2x1+3x2",
        "2x2",
        "3+2",
        "4 on 2x1",
    ]


def test_devices_that_are_left_idle_are_counted(answer: Answer) -> None:
    plan = answer.best.plan
    assert idle_words(plan) == ""
    assert idle_words(replace(plan, cluster=local_cluster(5))).startswith("3 of 5 devices are left idle")
    assert idle_devices(replace(plan, cluster=local_cluster(3))) == ["local/cpu2"]


def test_the_baseline_table_says_how_much_faster_and_what_does_not_fit(answer: Answer) -> None:
    slow = replace(answer.best.timeline, step_seconds=answer.best.step_seconds * 1.5)
    judged = {"gpipe": Judged(answer.best.plan, slow), "dapple": Judged(why="no"), "grid": Judged(why="no")}
    unfit = {"dapple": Reason("memory", "does not fit in memory: 3 GiB too much")}
    lines = shown(baseline_table(answer.best, judged, unfit))
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "1.50x as fast" in text and "does not fit in memory: 3 GiB too much" in text and "no plan" in text


def test_the_what_if_table_sets_before_beside_after(answer: Answer) -> None:
    better = replace(answer.best, timeline=replace(answer.best.timeline, step_seconds=answer.best.step_seconds / 2))
    after = [Changed("uplink=1 GB/s", replace(answer, candidates=(better,))), Changed("memory=1 GB", None, "no room")]
    lines = shown(what_if_table(answer, after))
    assert max(map(len, lines)) <= 80
    before, changed, nothing = (line for line in lines if re.match(r" (as it is|uplink|memory)", line))
    assert "1.00x" in before and "2.00x" in changed and "none" in nothing


def test_the_stage_table_sets_predicted_beside_measured(graph: Graph) -> None:
    lines = shown(stage_table(graph, timeline(), timeline("measured"), [0]))
    (row,) = [line for line in lines if "block.0" in line]
    assert row.count("450 ms") == 2 and row.count("400 ms") == 2
    (alone,) = [line for line in shown(stage_table(graph, timeline(), None, [0])) if "block.0" in line]
    assert alone.count("450 ms") == 1 and alone.count(" - ") == 2


def test_every_picture_in_the_report_is_well_formed() -> None:
    page = run_report(
        "job & co",
        facts={"job": "a < b"},
        timelines=[timeline(), timeline("measured")],
        stages=[["stage"], ["0"]],
        losses=[3.0, 2.0, 2.5],
        reference_losses=[3.0, 2.0],
    )
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 2
    timelines, curve = (ElementTree.fromstring(picture) for picture in pictures)
    assert {"simulated step: 1 s", "measured step: 1 s"} <= {element.text for element in timelines.iter()}
    circles = [element for element in curve.iter() if element.tag.endswith("circle")]
    assert len(circles) == 2, "a ring per step that one process made too"


def test_a_report_without_steps_says_so() -> None:
    page = run_report("empty", facts={}, timelines=[timeline()], stages=[["stage"]], losses=[])
    assert "no step was run" in page
