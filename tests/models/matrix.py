"""An architecture of the matrix under plans of one device per stage, and how far it is from the model as given."""

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from architecture import Architecture
from comparison import (
    LIMIT,
    Case,
    Outcome,
    difference,
    make_case,
    make_plan,
    train_alone,
    train_eagerly,
    train_on_threads,
)

MICRO_BATCHES = 2
STEPS = 2
FLOAT32_LIMIT = 1e-6


@lru_cache(maxsize=1)  # tests go from model to model, and a capture takes memory
def captured(architecture: Architecture) -> Case:
    """The model captured once, with the same batch for every step."""
    return make_case(architecture.model(), [architecture.batch()] * STEPS)


def worst_difference(architecture: Architecture, boundaries: Sequence[int]) -> float:
    """Of losses, gradients, parameters and buffers after two steps of two micro-batches, cut at `boundaries`."""
    case = captured(architecture)
    plan = make_plan(case, (1,) * (len(boundaries) + 1), MICRO_BATCHES, boundaries=boundaries)
    found, _ = train_on_threads(case, plan)
    return difference(found, expected(architecture))


@lru_cache(maxsize=1)  # tests go from model to model, and a capture takes memory
def expected(architecture: Architecture) -> Outcome:
    """What the model gives as its author wrote it; one that draws numbers draws them from Plait's own streams."""
    case = captured(architecture)
    plan = make_plan(case, (1,), MICRO_BATCHES)
    if architecture.draws:
        return train_alone(case, plan)
    eager = train_eagerly(case, plan)
    used = {p.name for p in case.model.graph.parameters}
    before = {**dict(case.module.named_parameters()), **dict(case.module.named_buffers())}
    for name in eager.state.keys() - used:
        assert torch.equal(eager.state[name], before[name]), f"{name} is written, but not by any stage"
    return Outcome(eager.losses, eager.gradients, {n: t for n, t in eager.state.items() if n in used})


def limit(architecture: Architecture) -> float:
    """How far apart the two may be: rounding, of float32 where the model's own code computes in it.

    A cut may add a gradient's parts in another order. In float64 that is 1e-16, but where it is then rounded to
    float32, now and then one number comes out as its neighbour.
    """
    model = captured(architecture).model
    dtypes = {node.meta["val"].dtype for node in model.needs_gradient if isinstance(node.meta.get("val"), torch.Tensor)}
    return LIMIT if dtypes <= {torch.float64} else FLOAT32_LIMIT


def random_cuts(architecture: Architecture, count: int) -> Iterator[list[int]]:
    """`count` legal cuts into 2 to 6 stages, the same ones every time."""
    num_atoms = len(captured(architecture).model.graph.atoms)
    chosen = random.Random(architecture.name)
    for _ in range(count):
        stages = min(chosen.randint(2, 6), num_atoms)
        yield sorted(chosen.sample(range(1, num_atoms), stages - 1))
