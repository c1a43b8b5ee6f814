"""Measured costs kept between runs: found again, never trusted when damaged."""

import pytest

from plait.cost import AtomCost, Costs, OptimizerCost
from plait.cost.cache import cache_directory, cache_key, load_costs, store_costs

COSTS = Costs("print", {"cpu": (AtomCost(1, 2, 3, 4, 5, 6),)}, {"cpu": OptimizerCost(2, 1, 0)}, {"cpu": "measured"})


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_was_stored_is_found_again():
    store_costs("key", COSTS)
    assert load_costs("key") == COSTS
    assert [entry.name for entry in cache_directory().iterdir()] == ["key.json"]


def test_what_was_not_stored_is_not_found():
    assert load_costs("other") is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "null", "[]", "{}", '{"fingerprint": "a", "atoms": []}', '{"fingerprint": "a", "atoms": {"cpu": [[1]]}}'],
)
def test_a_damaged_file_is_as_good_as_none(content):
    cache_directory().mkdir(parents=True)
    (cache_directory() / "key.json").write_text(content)
    assert load_costs("key") is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    store_costs("key", COSTS)
    assert load_costs("key") is None


def test_another_model_kind_or_size_has_another_key():
    keys = {cache_key("a", "cpu", (1, 2), "cpu", 0), cache_key("b", "cpu", (1, 2), "cpu", 0)}
    keys |= {cache_key("a", "gpu", (1, 2), "cpu", 0), cache_key("a", "cpu", (1, 4), "cpu", 1)}
    assert len(keys) == 4
