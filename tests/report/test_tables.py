"""Tables in the terminal, and the report's pictures."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from rich.console import Console
from test_pictures import timeline

from plait.cluster import local_cluster
from plait.cost import AtomCost, Costs, OptimizerCost
from plait.graph import Atom, Graph, Parameter, Value
from plait.report import legend, plan_table, run_report, stage_table
from plait.search import Answer, Wishes, find_plans


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
    return find_plans(graph, costs, local_cluster(2), batch_size=8, wishes=Wishes(stages=2))


def shown(table: object, width: int = 80) -> list[str]:
    console = Console(width=width, file=None, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def test_the_plan_table_has_a_row_per_plan_best_first(answer: Answer) -> None:
    lines = shown(plan_table(answer, most=3))
    assert "a [tiny] job" in lines[0]
    rows = [line for line in lines if f" {answer.best.plan.layout()} " in line]
    assert len(rows) == 3
    assert "best" in rows[0]
    assert str(answer.best.plan.micro_batches) in rows[0]
    assert all(re.search(r"\+\d+% .*\d+% .*\d+% ", row) for row in rows), "over bound, bubble, communication"


def test_the_plan_table_fits_a_terminal_of_eighty_columns(answer: Answer) -> None:
    lines = shown(plan_table(answer))
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines), "nothing is cut short"


def test_the_stage_table_sets_predicted_beside_measured(graph: Graph) -> None:
    lines = shown(stage_table(graph, timeline(), timeline("measured"), [0]))
    (row,) = [line for line in lines if "block.0" in line]
    assert row.count("450 ms") == 2 and row.count("400 ms") == 2
    (alone,) = [line for line in shown(stage_table(graph, timeline(), None, [0])) if "block.0" in line]
    assert alone.count("450 ms") == 1 and alone.count(" - ") == 2


def test_the_legend_names_what_the_chart_draws() -> None:
    assert all(word in legend().plain for word in ("forward", "backward", "optimiser", "waiting", "idle"))


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
