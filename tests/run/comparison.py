"""Training under a plan with ranks as threads, training on one device, and how far the two are apart.

A capture takes seconds and a copy of its weights milliseconds, so a model is captured once per session and every
rank of every test gets a copy.
"""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

import torch
import torch.utils._pytree as pytree
from in_process import ThreadTransport, on_threads
from torch import Tensor, nn

from plait.cli.verify import largest_difference
from plait.cluster import Cluster, local_cluster
from plait.graph import Model, batch_rows, build_graph
from plait.jobs import load_job
from plait.plan import Plan, StagePlan, micro_batch_sizes
from plait.plan.batches import describe
from plait.run import OneDevice, Trainer

LIMIT = 1e-9
GPT2 = "gpt2-tiny?layers=2&width=32&heads=2&sequence=16&dropout=0"
BERT = "bert-tiny?layers=2&width=32&heads=2&sequence=24&dropout=0"


@dataclass(frozen=True)
class Case:
    """A model as its author wrote it, captured, with batches; all in float64."""

    module: nn.Module
    model: Model
    batches: tuple[Any, ...]
    loss: Callable[[Any, Any], Tensor] | None = None


@dataclass
class Outcome:
    losses: list[float]
    gradients: dict[str, Tensor]
    state: dict[str, Tensor]  # parameters and buffers


def in_float64(batch: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, batch)


@cache
def job_case(job_name: str, rows: int = 12) -> Case:
    job = load_job(job_name)
    torch.manual_seed(0)
    module, batches = job.model(), job.batches(rows, 0)
    return make_case(module, [next(batches), next(batches)], job.loss)


def make_case(module: nn.Module, batches: Sequence[Any], loss: Callable[[Any, Any], Tensor] | None = None) -> Case:
    module = module.double()
    given = tuple(in_float64(batch) for batch in batches)
    return Case(module, build_graph(copy.deepcopy(module), given[0], loss=loss, name="case"), given, loss)


def fresh(model: Model) -> Model:
    """The same captured code with weights of its own."""
    source = model.captured.module
    holder = nn.Module()
    holder.graph = source.graph  # type: ignore[assignment]
    copies: dict[Tensor, Tensor] = {}
    for names in (source.named_parameters(remove_duplicate=False), source.named_buffers(remove_duplicate=False)):
        for name, tensor in names:
            _put(holder, name, copies.setdefault(tensor, copy.deepcopy(tensor)))
    for node in source.graph.find_nodes(op="get_attr"):
        _put_missing(holder, source, str(node.target))
    return replace(model, captured=replace(model.captured, module=holder))  # type: ignore[arg-type]


def _put(holder: nn.Module, path: str, tensor: Tensor) -> None:
    *folders, name = path.split(".")
    for folder in folders:
        if not hasattr(holder, folder):
            holder.add_module(folder, nn.Module())
        holder = getattr(holder, folder)
    if isinstance(tensor, nn.Parameter):
        holder.register_parameter(name, tensor)
    else:
        holder.register_buffer(name, tensor)


def _put_missing(holder: Any, source: Any, path: str) -> None:
    """What the code reads besides parameters and buffers (constants, regions) is shared."""
    for part in path.split("."):
        source = getattr(source, part, None)  # the randomness is the stage's own
        if not hasattr(holder, part):
            setattr(holder, part, source)
            return
        holder = getattr(holder, part)


def make_plan(
    case: Case,
    layout: Sequence[int],
    micro_batches: int,
    *,
    schedule: str = "1f1b",
    shares: Sequence[Sequence[float]] | None = None,
    boundaries: Sequence[int] | None = None,
    placement: Sequence[int] | None = None,
    recompute: Collection[int] = (),
    tensor: Sequence[int] | None = None,
    splits: Sequence[Mapping[str, int]] | None = None,
    cluster: Cluster | None = None,
    **options: Any,
) -> Plan:
    """`layout` has the replicas at each position, `placement` each stage's position (one stage at each, in order).

    `tensor` has the devices of each replica at each position, and `splits` what each stage splits over them.
    """
    graph, atoms = case.model.graph, len(case.model.graph.atoms)
    places = list(range(len(layout))) if placement is None else placement
    inner = boundaries if boundaries is not None else [atoms * i // len(places) for i in range(1, len(places))]
    edges = [0, *inner, atoms]
    degrees = tensor or (1,) * len(layout)
    first = list(accumulate((r * d for r, d in zip(layout, degrees, strict=True)), initial=0))
    stages = [
        StagePlan(
            edges[index],
            edges[index + 1],
            tuple(range(first[place], first[place + 1])),
            tuple(shares[place]) if shares else (1.0,) * layout[place],
            recompute=index in recompute,
            tensor=degrees[place],
            split=splits[index] if splits else {},
        )
        for index, place in enumerate(places)
    ]
    return Plan(
        graph.name,
        graph.fingerprint,
        cluster or local_cluster(first[-1]),
        batch_rows(case.batches[0]),
        micro_batches,
        schedule,
        tuple(stages),
        batch=describe(case.batches[0]),
        **options,
    )


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.01)


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-3)


def train_on_threads(
    case: Case,
    plan: Plan,
    *,
    optimizer: Any = sgd,
    clip_norm: float | None = None,
    batches: Sequence[Any] | None = None,
) -> tuple[Outcome, list[Trainer]]:
    """Trains on all batches; every rank must report the same losses, and holders of a tensor the same numbers."""
    models = [fresh(case.model) for _ in range(plan.num_ranks)]

    def work(transport: ThreadTransport) -> tuple[list[float], Trainer, dict[str, Tensor], dict[str, Tensor]]:
        trainer = Trainer(models[transport.rank], plan, transport, optimizer=optimizer, clip_norm=clip_norm)
        losses = [trainer.step(batch) for batch in batches or case.batches]
        return losses, trainer, trainer.gradients(), trainer.state()

    results = on_threads(plan.num_ranks, work)
    losses = results[0][0]
    gradients: dict[str, Tensor] = {}
    state: dict[str, Tensor] = {}
    for own, _, own_gradients, own_state in results:
        assert own == losses, "ranks disagree about the loss"
        for found, into in ((own_gradients, gradients), (own_state, state)):
            for name, tensor in found.items():
                if name in into:
                    assert torch.equal(into[name], tensor), f"holders of {name} disagree"
                into[name] = tensor.detach().clone()
    return Outcome(losses, gradients, state), [result[1] for result in results]


def sizes(plan: Plan, batch: Any) -> tuple[int, ...]:
    return micro_batch_sizes(batch_rows(batch), plan.micro_batches, plan.most_replicas)


def train_alone(
    case: Case,
    plan: Plan,
    *,
    optimizer: Any = sgd,
    clip_norm: float | None = None,
    batches: Sequence[Any] | None = None,
) -> Outcome:
    one = OneDevice(fresh(case.model), optimizer, clip_norm=clip_norm)
    losses = [one.step(batch, sizes(plan, batch)) for batch in batches or case.batches]
    return Outcome(losses, one.gradients(), {**{n: p.detach() for n, p in one.parameters.items()}, **one.buffers()})


def train_eagerly(case: Case, plan: Plan, *, clip_norm: float | None = None) -> Outcome:
    """A plain loop over the model as its author wrote it."""
    module = copy.deepcopy(case.module).train()
    optimizer = sgd(module.parameters())
    losses = []
    for batch in case.batches:
        optimizer.zero_grad()
        rows, first, total = sum(sizes(plan, batch)), 0, 0.0
        for size in sizes(plan, batch):
            loss = eager_loss(case, module, take_rows(batch, first, first + size)) * (size / rows)
            loss.backward()
            total += loss.item()
            first += size
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        optimizer.step()
        losses.append(total)
    gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    state = {n: t.detach() for n, t in [*module.named_parameters(), *module.named_buffers()]}
    return Outcome(losses, gradients, state)


def eager_loss(case: Case, module: nn.Module, batch: Any) -> Tensor:
    if case.loss is not None:
        return case.loss(module(batch[0]), batch)
    result = module(**batch)
    return result if isinstance(result, Tensor) else result.loss


def take_rows(batch: Any, first: int, last: int) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor[first:last], batch)


def difference(found: Outcome, expected: Outcome, *, floor: float = 1e-6) -> float:
    """The largest relative difference of losses, gradients, parameters and buffers; see `largest_difference`."""
    losses = [abs(a - b) / abs(b) for a, b in zip(found.losses, expected.losses, strict=True)]
    return max(
        *losses,
        largest_difference(found.gradients, expected.gradients, floor=floor),
        largest_difference(found.state, expected.state, floor=floor),
    )


def assert_trains_like_one_device(
    case: Case,
    plan: Plan,
    *,
    optimizer: Any = sgd,
    clip_norm: float | None = None,
    batches: Sequence[Any] | None = None,
    floor: float = 1e-6,
) -> list[Trainer]:
    found, trainers = train_on_threads(case, plan, optimizer=optimizer, clip_norm=clip_norm, batches=batches)
    expected = train_alone(case, plan, optimizer=optimizer, clip_norm=clip_norm, batches=batches)
    worst = difference(found, expected, floor=floor)
    assert worst <= LIMIT, f"{worst:.1e}"
    return trainers
