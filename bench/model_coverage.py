"""Which architectures can be trained as a pipeline of two processes, by Plait and by torch.distributed.pipelining.

Claim: Plait captures, cuts and trains exactly (float64, relative 1e-9, two stages, two micro-batches over gloo) every
architecture of the test matrix that transformers can build, as given: the loss inside the model, no edit. The same
models go through PyTorch's own pipelining (its tracing front end, split before the middle layer, GPipe) in the same
run: as given, helped by taking the loss out of the model and summing tied gradients by hand, and helped further by
making contiguous what it sends, which gloo asks for.
"""

import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers  # noqa: F401 - once, before the first fork
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from _forks import Failed, in_a_process, on_ranks, one_line
from _harness import arguments, finish
from _loss_apart import taken_apart
from _pytorch_pipeline import Call, as_given, distance, names, split, train_split, train_whole
from plait.graph import Model
from plait.run.trainer import Trainer, groups_of
from plait.run.transport import TorchTransport

TESTS = Path(__file__).parent.parent / "tests"
sys.path += [str(TESTS / "models"), str(TESTS / "run")]

from architecture import Architecture  # noqa: E402
from architectures import ARCHITECTURES  # noqa: E402
from comparison import Outcome, difference, fresh, make_plan, sgd  # noqa: E402
from matrix import MICRO_BATCHES, captured, expected  # noqa: E402

LIMIT = 1e-9
SECONDS = 120.0  # for one model and one tool


@dataclass(frozen=True)
class Attempt:
    """How far one tool came with one model."""

    splits: bool = False
    runs: bool = False
    difference: float | None = None
    why: str = ""
    atoms: int = 0

    @property
    def exact(self) -> bool:
        return self.difference is not None and self.difference <= LIMIT

    @property
    def mark(self) -> str:
        return "exact" if self.exact else "wrong" if self.runs else "no run" if self.splits else "no split"


@dataclass(frozen=True)
class Row:
    name: str
    family: str
    plait: Attempt
    given: Attempt
    helped: Attempt
    mended: Attempt


# Plait


def attempt_plait(architecture: Architecture) -> Attempt:
    try:
        model = captured(architecture).model
    except Exception as error:  # noqa: BLE001 - what went wrong is the result
        return Attempt(why=one_line(error))
    atoms = len(model.graph.atoms)
    try:
        found = difference(train_in_two_processes(architecture, model), expected(architecture))
    except Exception as error:  # noqa: BLE001
        return Attempt(splits=True, why=one_line(error), atoms=atoms)
    return trained(found, atoms)


def trained(difference: float, atoms: int = 0) -> Attempt:
    """One that ran: how far it is from the uncut model."""
    if math.isinf(difference):
        return Attempt(splits=True, runs=True, why="a gradient is missing or not a number", atoms=atoms)
    why = "" if difference <= LIMIT else f"differs by {difference:.1e}"
    return Attempt(splits=True, runs=True, difference=difference, why=why, atoms=atoms)


def train_in_two_processes(architecture: Architecture, model: Model) -> Outcome:
    case = captured(architecture)
    plan = make_plan(case, (1, 1), MICRO_BATCHES)

    def work(_: int) -> dict[str, Any]:
        own = fresh(model)
        transport = TorchTransport(groups_of(plan, own), device=torch.device("cpu"), timeout_seconds=30)
        trainer = Trainer(own, plan, transport, optimizer=sgd)
        losses = [trainer.step(batch) for batch in case.batches]
        return {"losses": losses, "gradients": trainer.gradients(), "state": _detached(trainer.state())}

    ranks = on_ranks(plan.num_ranks, work, SECONDS)
    return Outcome(
        ranks[0]["losses"],
        {name: tensor for rank in ranks for name, tensor in rank["gradients"].items()},
        {name: tensor for rank in ranks for name, tensor in rank["state"].items()},
    )


def _detached(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


# PyTorch


def attempt_as_given(architecture: Architecture) -> Attempt:
    model, call = architecture.model(), as_given(architecture.batch())
    return attempt_pytorch(model, call, architecture.middle, sum_tied=False)


def attempt_mended(architecture: Architecture) -> Attempt:
    return attempt_helped(architecture, mended=True)


def attempt_helped(architecture: Architecture, *, mended: bool = False) -> Attempt:
    given, batch = architecture.model(), architecture.batch()
    parts = taken_apart(given, batch, architecture.task)
    call = Call(parts.inputs, {}, parts.target, parts.loss)
    if not architecture.draws:
        check_loss(given, batch, call, parts.model)
    return attempt_pytorch(parts.model, call, f"model.{architecture.middle}", sum_tied=True, mended=mended)


def check_loss(given: nn.Module, batch: dict[str, Any], call: Call, prediction: nn.Module) -> None:
    """The loss taken out is the model's own, or the comparison is worth nothing."""
    own = as_given(batch)
    with torch.no_grad():
        inside = float(own.loss(given(**batch), own.target))
        outside = float(call.loss(prediction(*call.args), call.target))
    assert abs(inside - outside) <= 1e-5 * abs(inside), f"the loss inside is {inside}, outside {outside}"


def attempt_pytorch(model: nn.Module, call: Call, middle: str, *, sum_tied: bool, mended: bool = False) -> Attempt:
    try:
        pipe = split(model, call, middle, MICRO_BATCHES)
    except Exception as error:  # noqa: BLE001
        return Attempt(why=one_line(error))
    try:
        found = train_split(pipe, call, MICRO_BATCHES, SECONDS, mended=mended)
    except Exception as error:  # noqa: BLE001
        return Attempt(splits=True, why=one_line(error))
    whole = train_whole(model, call, MICRO_BATCHES)
    return trained(distance(found, whole, names(model), sum_tied=sum_tied))


# The table


def compare(architecture: Architecture) -> Row | str:
    """A row, or why transformers cannot build the model."""
    try:
        in_a_process(lambda: architecture.model() and None, SECONDS)
    except Failed as failure:
        return str(failure)
    plait, given, helped = (_tried(t, architecture) for t in (attempt_plait, attempt_as_given, attempt_helped))
    stopped = helped.splits and not helped.runs
    mended = _tried(attempt_mended, architecture) if stopped else helped
    return Row(architecture.name, architecture.family, plait, given, helped, mended)


def _tried(tool: Any, architecture: Architecture) -> Attempt:
    try:
        found: Attempt = in_a_process(lambda: tool(architecture), SECONDS)
    except Failed as failure:
        return Attempt(why=str(failure))
    return found


def show(rows: list[Row], unbuilt: dict[str, str]) -> None:
    table = Table(title=f"Two stages, {MICRO_BATCHES} micro-batches, float64; PyTorch {torch.__version__}")
    for column in ("architecture", "atoms", "cuts", "Plait", "difference", "PyTorch", "helped", "mended", "why not"):
        table.add_column(column, justify="right" if column in ("atoms", "cuts", "difference") else "left")
    for row in rows:
        own, cuts = row.plait, max(row.plait.atoms - 1, 0)
        why = f"Plait: {own.why}" if own.why else row.mended.why or row.helped.why
        far = "" if own.difference is None else f"{own.difference:.0e}"
        marks = (row.given.mark, row.helped.mark, row.mended.mark)
        table.add_row(row.name, str(own.atoms), str(cuts), own.mark, far, *marks, escape(why))
    console = Console(width=170)
    console.print(table)
    for name, why in unbuilt.items():
        console.print(f"does not build, not counted: {name}: {why}")
    reasons = sorted({row.given.why for row in rows if row.given.why})
    console.print(f"PyTorch as given, {len(reasons)} reasons:")
    for reason in reasons:
        console.print(f"  {sum(row.given.why == reason for row in rows)} x {reason}", markup=False)


def main() -> None:
    options = arguments(__doc__)
    torch.set_num_threads(1)
    chosen = [a for a in ARCHITECTURES if a.fast or not options.quick]
    rows: list[Row] = []
    unbuilt: dict[str, str] = {}
    for architecture in chosen:
        found = compare(architecture)
        if isinstance(found, str):
            unbuilt[architecture.name] = found
            continue
        rows.append(found)
        print(
            f"{found.name}: Plait {found.plait.mark}, PyTorch {found.given.mark}, helped {found.helped.mark}",
            flush=True,
        )
    show(rows, unbuilt)
    exact = sum(row.plait.exact for row in rows)
    figures = {
        "architectures": len(rows),
        "plait_exact": exact,
        "pytorch_as_given": sum(row.given.exact for row in rows),
        "pytorch_helped": sum(row.helped.exact for row in rows),
        "pytorch_helped_and_mended": sum(row.mended.exact for row in rows),
        "pytorch_splits": sum(row.helped.splits for row in rows),
        "plait_worst": f"{max(row.plait.difference or 0.0 for row in rows):.1e}",
    }
    finish(
        "model_coverage",
        figures,
        rows=[asdict(row) for row in rows],
        holds=exact == len(rows),
        check=options.check,
    )


if __name__ == "__main__":
    main()
