"""Deferred construction: the tape gives any of a model's tensors the numbers whole construction gives them."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from plait.jobs import load_job
from plait.run.deferred import CannotDefer, record
from plait.run.materialise import construct


def named(module: nn.Module) -> dict[str, Tensor]:
    """Parameters, buffers and plain tensors of the module itself."""
    own = {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}
    return {**dict(module.named_parameters()), **dict(module.named_buffers()), **own}


def assert_same_numbers(build: Callable[[], nn.Module], every: int = 3) -> None:
    """All tensors, and every few of them alone; the generator is left as whole construction leaves it."""
    torch.manual_seed(7)
    expected, state = named(build()), torch.get_rng_state()
    torch.manual_seed(7)
    module, tape = record(build)
    hollow = named(module)
    assert list(hollow) == list(expected)
    for names in (list(hollow), list(hollow)[1::every]):
        found = tape.values([hollow[name] for name in names])
        for name, value in zip(names, found, strict=True):
            assert value.dtype == expected[name].dtype
            assert torch.equal(value, expected[name]), name
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("job", "dtype"),
    [
        ("gpt2-tiny?layers=2&width=32&heads=2", torch.float32),
        ("gpt2-tiny?layers=2&width=32&heads=2", torch.bfloat16),
        ("bert-tiny?layers=2&width=32&heads=2", torch.float32),
        ("resnet50?width=0.125&image=32", torch.float64),
    ],
)
def test_built_in_models(job: str, dtype: torch.dtype) -> None:
    assert_same_numbers(lambda: load_job(job).model().to(dtype))


class Everything(nn.Module):
    """A constructor that does what constructors do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2
        )  # copies its layer
        self.norm = copy.deepcopy(nn.BatchNorm1d(8))
        self.orthogonal = nn.Linear(8, 8)
        nn.init.orthogonal_(self.orthogonal.weight)
        self.truncated = nn.Parameter(nn.init.trunc_normal_(torch.empty(33), std=0.5))
        self.mask = torch.full((4, 4), -math.inf).triu(1)
        self.constant = torch.tensor([1.0, 2.0, 3.0])
        self.constant[1] = 7
        self.register_buffer("scaled", torch.arange(8.0) * self.constant.sum(), persistent=False)
        self.turned = nn.Parameter(torch.randn(5, 3).t())
        self.picked = nn.Parameter(torch.arange(10.0)[torch.randperm(10)])
        self.noisy = nn.Parameter(torch.normal(torch.rand(9), torch.rand(9)))
        self.cast = nn.Linear(4, 4).double()


def test_what_constructors_do() -> None:
    assert_same_numbers(Everything)


class Reads(nn.Module):
    """Numbers of tensors decide what is built."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.rates = [rate.item() for rate in torch.linspace(0, 0.3, 4)] + torch.linspace(0, 1, 3).tolist()
        width = 4 if float(torch.rand(1)) < 2.0 else 5
        self.second = nn.Linear(3, width + int(torch.tensor([3, 0, 2]).nonzero().sum()))
        self.drawn = torch.rand(2)[1].item()
        self.third = nn.Linear(3, 3)


def test_a_constructor_may_read_what_it_made() -> None:
    assert_same_numbers(Reads)
    torch.manual_seed(7)
    whole = Reads()
    torch.manual_seed(7)
    module, _ = record(Reads)
    assert (module.rates, module.drawn) == (whole.rates, whole.drawn)


class Seeds(nn.Module):
    """Seeds of its own, states put back, a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.forked = nn.Linear(4, 4)
        self.after = nn.Linear(4, 4)
        state = torch.get_rng_state()
        self.once = nn.Linear(4, 4)
        torch.set_rng_state(state)
        self.twice = nn.Linear(4, 4)
        generator = torch.Generator().manual_seed(5)
        self.own = nn.Parameter(torch.randn(20, generator=generator))
        self.mixed = nn.Parameter(torch.randn(20, generator=generator) + torch.rand(20))
        torch.manual_seed(11)
        self.small = nn.Linear(2, 2)
        state = torch.get_rng_state()
        torch.manual_seed(11)
        self.large = nn.Linear(5, 5)
        torch.set_rng_state(state)
        self.last = nn.Linear(4, 4)
        torch.set_rng_state(state)


def test_generators_are_seeded_and_restored_as_the_constructor_does() -> None:
    assert_same_numbers(Seeds)
    module, tape = record(Seeds)
    once, twice = tape.values([module.once.weight, module.twice.weight])
    assert torch.equal(once, twice)


INITIALISERS: list[Callable[[Tensor], object]] = [
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.xavier_normal_,
    nn.init.kaiming_uniform_,
    nn.init.ones_,
    lambda t: t.bernoulli_(0.3),
    lambda t: t.copy_(torch.rand(t.shape)),
    lambda t: t[1:].exponential_(),
    lambda t: t.t().normal_(),
    lambda t: t.mul_(2).add_(1),
]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(INITIALISERS), st.integers(2, 9)), max_size=12))
def test_any_order_of_initialisers(calls: list[tuple[int, Callable[[Tensor], object], int]]) -> None:
    def build() -> nn.Module:
        module = nn.ParameterList(torch.zeros(2 + index, 7) for index in range(6))
        with torch.no_grad():
            for index, initialise, width in calls:
                initialise(module[index])
                if width > 7:
                    module[(index + 1) % 6] = torch.randn(width, width)
        return module

    assert_same_numbers(build, every=2)


def test_a_constructor_that_cannot_be_deferred_builds_the_whole_model() -> None:
    class UsesNumpy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.total = float(self.first.weight.detach().numpy().sum())
            self.second = nn.Linear(3, 3)

    torch.manual_seed(1)
    whole = UsesNumpy()
    torch.manual_seed(1)
    with pytest.raises(CannotDefer, match="numpy reads memory"):
        record(UsesNumpy)
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match=r"built whole.*CannotDefer: Tensor.numpy"):
        construction = construct(UsesNumpy)
    assert construction.tape is None
    for name, tensor in named(construction.module).items():
        assert torch.equal(tensor, named(whole)[name])


def test_a_generator_from_outside_is_as_it_was_when_the_model_is_built_whole() -> None:
    generator = torch.Generator().manual_seed(4)
    expected = torch.randn(12, generator=torch.Generator().manual_seed(4))

    def build() -> nn.Module:
        module = nn.ParameterList([torch.randn(12, generator=generator)])
        np.asarray(module[0].detach())
        return module

    with pytest.warns(UserWarning, match="built whole"):
        construction = construct(build)
    assert torch.equal(construction.module[0], expected)


def test_a_constructor_that_fails_says_so_itself() -> None:
    def build() -> nn.Module:
        raise KeyError("no such size")

    with pytest.raises(KeyError, match="no such size"):
        construct(build)
