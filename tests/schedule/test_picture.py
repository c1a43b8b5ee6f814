"""Pictures of schedules, and that the page about them shows the ones the code draws."""

from pathlib import Path

from schedule_strategies import line

from plait.schedule import make_schedule
from plait.schedule.__main__ import pictures
from plait.schedule.picture import picture

PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"


def test_a_picture_has_a_cell_per_unit_of_time():
    assert picture(make_schedule("zb-h1", line(2), 2)).splitlines() == [
        "position 0  0F0 0F1 .   0I0 0W0 0I1 0W1",
        "position 1  .   1F0 1I0 1F1 1I1 1W0 1W1",
    ]


def test_the_page_shows_what_the_code_draws():
    assert pictures(4, 6) in PAGE.read_text()
