"""Which architectures can be trained as a pipeline of two processes, by Plait and by torch.distributed.pipelining.

Claim: Plait captures, cuts and trains exactly (float64, relative 1e-9, two stages, two micro-batches over gloo) every
architecture of the test matrix that transformers can build, as given: the loss inside the model, no edit. The same
models go through PyTorch's own pipelining (its tracing front end, split before the middle layer, GPipe) in the same
run: as given, and helped by taking the loss out of the model and summing tied gradients by hand.
"""

import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers  # noqa: F401 - once, before the first fork
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from _forks import Failed, in_a_process, on_ranks, one_line
from _harness import arguments, finish
from _loss_apart import taken_apart
from _pytorch_pipeline import Call, Trained, as_given, split, train_split, train_whole
from plait.cli.verify import largest_difference
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
    difference: float = math.inf
    why: str = ""
    atoms: int = 0

    @property
    def exact(self) -> bool:
        return self.difference <= LIMIT

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
    return Attempt(splits=True, runs=True, difference=found, why=_how_far(found), atoms=atoms)


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


def attempt_helped(architecture: Architecture) -> Attempt:
    given, batch = architecture.model(), architecture.batch()
    parts = taken_apart(given, batch, architecture.task)
    call = Call(parts.inputs, {}, parts.target, parts.loss)
    if not architecture.draws:
        check_loss(given, batch, call, parts.model)
    return attempt_pytorch(parts.model, call, f"model.{architecture.middle}", sum_tied=True)


def check_loss(given: nn.Module, batch: dict[str, Any], call: Call, prediction: nn.Module) -> None:
    """The loss taken out is the model's own, or the comparison is worth nothing."""
    own = as_given(batch)
    with torch.no_grad():
        inside = float(own.loss(given(**batch), own.target))
        outside = float(call.loss(prediction(*call.args), call.target))
    assert abs(inside - outside) <= 1e-5 * abs(inside), f"the loss inside is {inside}, outside {outside}"


def attempt_pytorch(model: nn.Module, call: Call, middle: str, *, sum_tied: bool) -> Attempt:
    try:
        pipe = split(model, call, middle, MICRO_BATCHES)
    except Exception as error:  # noqa: BLE001
        return Attempt(why=one_line(error))
    try:
        found = train_split(pipe, call, MICRO_BATCHES, SECONDS)
    except Exception as error:  # noqa: BLE001
        return Attempt(splits=True, why=one_line(error))
    far = pytorch_difference(found, train_whole(model, call, MICRO_BATCHES), names(model), sum_tied=sum_tied)
    return Attempt(splits=True, runs=True, difference=far, why=_how_far(far))


def names(model: nn.Module) -> dict[str, str]:
    """Every name of every parameter to its first: tied ones have several."""
    first: dict[int, str] = {}
    return {n: first.setdefault(id(p), n) for n, p in model.named_parameters(remove_duplicate=False)}


def pytorch_difference(found: Trained, whole: Trained, first: dict[str, str], *, sum_tied: bool) -> float:
    wanted = whole.gradients[0]
    stages = [{first[name]: gradient for name, gradient in stage.items()} for stage in found.gradients]
    if sum_tied:
        stages = [_summed(stages)]
    missing = set(wanted) - {name for stage in stages for name in stage}
    if any(float(wanted[name].abs().max()) > 0 for name in missing):
        return math.inf
    present = [({n: stage[n] for n in stage}, {n: wanted[n] for n in stage}) for stage in stages]
    written = {n: whole.buffers[n] for n in found.buffers.keys() & whole.buffers.keys()}
    return max(
        abs(found.loss - whole.loss) / abs(whole.loss),
        largest_difference(found.buffers, written),
        *(largest_difference(own, reference) for own, reference in present),
    )


def _summed(stages: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for stage in stages:
        for name, gradient in stage.items():
            total[name] = total[name] + gradient if name in total else gradient
    return total


def _how_far(found: float) -> str:
    return "" if found <= LIMIT else f"differs by {found:.1e}"


# The table


def compare(architecture: Architecture) -> Row | str:
    """A row, or why transformers cannot build the model."""
    try:
        in_a_process(lambda: architecture.model() and None, SECONDS)
    except Failed as failure:
        return str(failure)
    tools = (attempt_plait, attempt_as_given, attempt_helped)
    return Row(architecture.name, architecture.family, *(_tried(tool, architecture) for tool in tools))


def _tried(tool: Any, architecture: Architecture) -> Attempt:
    try:
        found: Attempt = in_a_process(lambda: tool(architecture), SECONDS)
    except Failed as failure:
        return Attempt(why=str(failure))
    return found


def show(rows: list[Row], unbuilt: dict[str, str]) -> None:
    table = Table(title=f"Two stages, {MICRO_BATCHES} micro-batches, float64; PyTorch {torch.__version__}")
    for column in ("architecture", "atoms", "cuts", "Plait", "difference", "PyTorch", "helped", "why not (helped)"):
        table.add_column(column, justify="right" if column in ("atoms", "cuts", "difference") else "left")
    for row in rows:
        own, cuts = row.plait, max(row.plait.atoms - 1, 0)
        why = f"Plait: {own.why}" if own.why else row.helped.why
        far = f"{own.difference:.0e}" if own.runs else ""
        table.add_row(row.name, str(own.atoms), str(cuts), own.mark, far, row.given.mark, row.helped.mark, why)
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
        print(f"{found.name}: Plait {found.plait.mark}, PyTorch {found.given.mark}, helped {found.helped.mark}")
    show(rows, unbuilt)
    exact = sum(row.plait.exact for row in rows)
    figures = {
        "architectures": len(rows),
        "plait_exact": exact,
        "pytorch_as_given": sum(row.given.exact for row in rows),
        "pytorch_helped": sum(row.helped.exact for row in rows),
        "pytorch_helped_splits": sum(row.helped.splits for row in rows),
        "plait_worst": f"{max(row.plait.difference for row in rows):.1e}",
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
