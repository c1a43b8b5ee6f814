"""What people look at."""

import xml.etree.ElementTree as ElementTree

from plait.program import Instruction, Op
from plait.report import mean_seconds, run_report, share, timelines_svg
from plait.simulate import Span, Timeline


def timeline(source: str = "simulated") -> Timeline:
    forward = Instruction(Op.F, 0, 3, first_row=0, last_row=4)
    backward = Instruction(Op.B, 0, 3, first_row=0, last_row=4)
    spans = (
        Span(0, "compute", forward, 0.0, 0.4),
        Span(0, "wait", backward, 0.4, 0.6),
        Span(0, "compute", backward, 0.6, 1.0),
        Span(1, "compute", forward, 0.5, 1.0),
    )
    return Timeline(source, 2, spans, 1.0)


def test_shares_add_up_to_the_step() -> None:
    assert (share(timeline(), "busy"), share(timeline(), "exposed_communication"), share(timeline(), "bubble")) == (
        "65%",
        "10%",
        "25%",
    )


def test_mean_seconds_of_a_stage() -> None:
    assert mean_seconds(timeline(), Op.F, 0) == 0.45
    assert mean_seconds(timeline(), Op.F, 5) is None


def test_svg_is_well_formed_and_shows_every_computation() -> None:
    root = ElementTree.fromstring(timelines_svg([timeline(), timeline("measured")]))
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 6
    assert titles[0] == "0F3: 400 ms"


def test_report_escapes_what_users_name_things() -> None:
    page = run_report(
        "a <b> job",
        facts={"job": "<script>"},
        timelines=[timeline()],
        stages=[["stage"], ["<i>"]],
        losses=[2.0, 1.0],
        reference_losses=[2.0],
    )
    assert "<script>" not in page and "&lt;script&gt;" in page and "rings: one process" in page
