"""The heart of tensor groups: however parameters are split, a group's devices compute one device's numbers.

Any split of any parameters is right, if not wise: what does not fit is gathered. So splits are drawn at random, and
the ones chosen are tried besides. Float64, devices as threads, loss, gradients and buffers after one step.
"""

import random
from collections import Counter

import pytest
import torch
from shared_cases import JOBS, LIBRARY, ROWS, captured, case_of, job_case, random_split
from shared_runner import run_alone, run_shared
from stage_runner import assert_same
from torch import Tensor, nn

from plait.graph.sharding.choose import choose_split
from plait.graph.sharding.measure import sharding_of

LIMIT = 1e-9


@pytest.mark.parametrize("name", [*JOBS, *LIBRARY])
def test_any_split_of_any_parameters_gives_one_devices_numbers(name: str) -> None:
    model, batch = case_of(name)
    alone = run_alone(model, batch)
    for seed in range(2 if name == "resnet" else 3):
        chosen = random.Random(seed)
        degree, split = (2, 3, 4)[seed], random_split(model, chosen)
        boundaries = [chosen.randrange(1, len(model.atom_nodes))] if seed == 1 else []
        devices = run_shared(model, batch, split, degree, boundaries=boundaries)
        assert devices[0].calls, "nothing was exchanged, so nothing was tested"
        for device in devices:
            assert_same(device.outcome, alone, tolerance=LIMIT)


@pytest.mark.parametrize("degree", [2, 4, 3])
@pytest.mark.parametrize("name", [*JOBS, *LIBRARY])
def test_the_chosen_split_gives_one_devices_numbers_and_exchanges_what_it_says(name: str, degree: int) -> None:
    model, batch = case_of(name)
    end = len(model.atom_nodes)
    split = choose_split(model, 0, end, degree, latency=0.0, seconds_per_byte=1e-14, rows=ROWS)
    sharding = sharding_of(model, 0, end, degree, split)
    assert sharding.split == split and len(split) >= len(model.graph.parameters) // 3
    assert min(sharding.work) < 1.0 and max(sharding.work) <= 1.0
    devices = run_shared(model, batch, split, degree)
    alone = run_alone(model, batch)
    for device in devices:
        assert_same(device.outcome, alone, tolerance=LIMIT)
        (code,) = device.codes
        assert set(code.parts) == set(split)
        assert Counter(kind for kind, _ in device.calls) == Counter(c.kind for c in sharding.collectives)


def test_a_group_holds_every_number_of_a_split_parameter_once() -> None:
    model, batch = job_case("gpt2")
    split = choose_split(model, 0, len(model.atom_nodes), 3, latency=0.0, seconds_per_byte=1e-14, rows=ROWS)
    devices = run_shared(model, batch, split, 3)
    whole = {p.name: p for p in model.graph.parameters}
    for name in split:
        held = [device.codes[0].named_parameters()[name].numel() for device in devices]
        assert sum(held) * 8 == whole[name].num_bytes and min(held) > 0


def test_queries_keys_and_values_in_one_are_split_by_the_same_heads() -> None:
    model, batch = job_case("gpt2")
    (device, *_) = run_shared(model, batch, {"blocks.0.attention.query_key_value.weight": 0}, 3)
    part = device.codes[0].parts["blocks.0.attention.query_key_value.weight"]
    assert (part.sections(96), part.cells, part.unit) == (3, 4, 8)


# What is exchanged


class Pair(nn.Module):
    """Two layers, the first and the second half of a column-row pair, and a loss."""

    def __init__(self, width: int = 16, inside: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(width, inside)
        self.second = nn.Linear(inside, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()).square().mean()


class Deep(nn.Module):
    def __init__(self, num_pairs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(2 * num_pairs))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


def test_a_column_and_a_row_split_need_one_exchange_each_way() -> None:
    model, batch = captured(Pair(), {"x": torch.randn(ROWS, 16)})
    split = {"first.weight": 0, "first.bias": 0, "second.weight": 1}
    device = run_shared(model, batch, split, 2)[0]
    assert device.calls == [("all-reduce", ROWS * 16 * 8)]  # the batch needs no gradient
    deep, batch = captured(Deep(2), {"x": torch.randn(ROWS, 32)})
    paired = {"layers.0.weight": 0, "layers.1.weight": 1, "layers.2.weight": 0, "layers.3.weight": 1}
    device = run_shared(deep, batch, paired, 2)[0]
    assert [kind for kind, _ in device.calls] == ["all-reduce", "all-reduce", "all-reduce"]


def test_column_splits_alone_move_twice_what_pairs_move() -> None:
    model, _ = captured(Deep(4), {"x": torch.randn(ROWS, 32)})
    words = {}
    for name, dims in (("columns", (0, 0)), ("pairs", (0, 1))):
        split = {f"layers.{i}.weight": dims[i % 2] for i in range(8)}
        sharding = sharding_of(model, 0, len(model.atom_nodes), 2, split)
        rounds = {"all-reduce": 2, "all-gather": 1}
        words[name] = sum(rounds[c.kind] * c.bytes_per_row for c in sharding.collectives)
    assert words["pairs"] <= words["columns"] * 0.7


def test_counted_bytes_are_those_of_the_sharding() -> None:
    model, batch = captured(Deep(2), {"x": torch.randn(ROWS, 32)})
    split = {f"layers.{i}.weight": 0 for i in range(4)}
    sharding = sharding_of(model, 0, len(model.atom_nodes), 2, split)
    device = run_shared(model, batch, split, 2)[0]
    expected: Counter[str] = Counter()
    for collective in sharding.collectives:  # a device hands in its part of what is gathered
        part = 2 if collective.kind == "all-gather" else 1
        expected[collective.kind] += round((collective.bytes_per_row * ROWS + collective.fixed_bytes) / part)
    found: Counter[str] = Counter()
    for kind, num_bytes in device.calls:
        found[kind] += num_bytes
    assert found == expected


class Squared(nn.Module):
    """Squares a sum of which every device has a term, and writes into a tensor that was read before."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        terms = self.first(x)
        filled = torch.zeros_like(terms)
        before = self.second(filled + 1.0)
        filled[:, :4] = (terms * terms)[:, :4]
        return (self.second(filled) * before + terms / 2 + terms).square().mean()


@pytest.mark.parametrize("dims", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
def test_products_of_sums_and_tensors_that_are_written_to(dims: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model, batch = captured(Squared(), {"x": torch.randn(ROWS, 8)})
    alone = run_alone(model, batch)
    for device in run_shared(model, batch, {"first.weight": dims[0], "second.weight": dims[1]}, 2):
        assert_same(device.outcome, alone, tolerance=LIMIT)


# The choice


def test_layers_are_paired_where_work_is_worth_sharing() -> None:
    model, _ = captured(Pair(256, 1024), {"x": torch.randn(ROWS, 256)})
    split = choose_split(model, 0, len(model.atom_nodes), 2, latency=0.0, seconds_per_byte=1e-12, rows=64)
    assert split == {"first.weight": 0, "first.bias": 0, "second.weight": 1}


def test_nothing_is_split_where_messages_cost_more_than_work() -> None:
    model, _ = captured(Pair(), {"x": torch.randn(ROWS, 16)})
    assert choose_split(model, 0, len(model.atom_nodes), 2, latency=1.0, seconds_per_byte=1e-9) == {}


def test_one_device_splits_nothing() -> None:
    model, _ = captured(Pair(), {"x": torch.randn(ROWS, 16)})
    assert choose_split(model, 0, len(model.atom_nodes), 1, latency=0.0, seconds_per_byte=0.0) == {}


def test_no_random_split_is_cheaper_than_the_chosen_one() -> None:
    model, _ = captured(Deep(3), {"x": torch.randn(ROWS, 32)})
    end, rows, beta, seconds = len(model.atom_nodes), 64, 1e-9, 1e-3

    def cost(split: dict[str, int]) -> float:
        sharding = sharding_of(model, 0, end, 2, split)
        rounds = {"all-reduce": 2, "all-gather": 1}
        sent = sum(rounds[c.kind] * (c.bytes_per_row * rows + c.fixed_bytes) / 2 for c in sharding.collectives)
        return sum(share * seconds for share in sharding.work) + sent * beta

    chosen = dict(
        choose_split(model, 0, end, 2, latency=0.0, seconds_per_byte=beta, rows=rows, atom_seconds=[seconds] * end)
    )
    best = cost(chosen)
    assert best < cost({})
    for seed in range(60):
        assert cost(random_split(model, random.Random(seed))) >= best - 1e-12


def test_what_stays_whole_says_why() -> None:
    model, _ = job_case("gpt2")
    split = {"blocks.0.feed_forward.output.weight": 0}
    sharding = sharding_of(model, 0, len(model.atom_nodes), 2, split)
    reasons = " ".join(sharding.whole.values())
    assert "to split it costs as much" in reasons
    many = sharding_of(model, 0, len(model.atom_nodes), 8, {"blocks.0.attention.query_key_value.weight": 0})
    assert many.split == {}
    assert any("stay together, for 8 devices" in why for why in many.whole.values())
