"""Checkpoints: saved under one plan, continued under another as if nothing had happened; and never half of one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from comparison import GPT2, LIMIT, Case, adamw, fresh, job_case, make_case, make_plan, sizes
from in_process import on_threads
from torch import nn

from plait.errors import PlaitError
from plait.graph import Model
from plait.jobs import load_job
from plait.plan import Plan, save_plan
from plait.run import OneDevice, Trainer
from plait.run.checkpoint import checkpoint_step, load_tensors
from plait.run.session import run_plan
from plait.run.settings import Settings

DROPOUT = "gpt2-tiny?layers=2&width=32&heads=2&sequence=16&dropout=0.3"


def unbroken(case: Case, plan: Plan, optimizer: Any, batches: list[Any]) -> list[float]:
    one = OneDevice(fresh(case.model), optimizer)
    return [one.step(batch, sizes(plan, batch)) for batch in batches]


def job_batches(job_name: str, number: int) -> list[Any]:
    batches = load_job(job_name).batches(12, 0)
    return [next(batches) for _ in range(number)]


def launch_steps(folder: Path, job: str, plan: Plan, steps: int, **options: Any) -> list[float]:
    folder.mkdir()
    save_plan(plan, folder / "plan.json")
    settings = Settings(
        job=job,
        plan=folder / "plan.json",
        steps=steps,
        batch_size=12,
        dtype="float64",
        timeout_seconds=60,
        **options,
    )
    return run_plan(settings, plan, folder).losses


def alone(case: Case, **options: Any) -> Trainer:
    """A trainer on the only rank of a plan."""
    plan = make_plan(case, (1,), 3)
    model = fresh(case.model)
    (trainer,) = on_threads(1, lambda transport: Trainer(model, plan, transport, **options))
    return trainer


# Other plans


def test_ranks_continue_what_others_saved(tmp_path: Path, warm_ranks: Any) -> None:
    """Weights, AdamW's state, dropout and the place in the data: 2 ranks save, 3 continue."""
    case, checkpoint = job_case(DROPOUT), tmp_path / "checkpoint"
    before, after = make_plan(case, (1, 1), 3), make_plan(case, (1, 1, 1), 3)
    expected = unbroken(case, before, load_job(DROPOUT).optimizer, job_batches(DROPOUT, 4))
    first = launch_steps(tmp_path / "first", DROPOUT, before, 2, save=checkpoint)
    second = launch_steps(tmp_path / "second", DROPOUT, after, 2, load=checkpoint)
    assert first + second == pytest.approx(expected, rel=LIMIT, abs=0)
    assert checkpoint_step(checkpoint) == 2


@pytest.mark.parametrize("layout", [(2, 2), (4,), (1, 1, 1, 1)], ids=str)
def test_any_plan_continues_what_one_rank_saved(tmp_path: Path, layout: tuple[int, ...]) -> None:
    case, batches = job_case(GPT2), job_batches(GPT2, 4)
    trainer = alone(case, optimizer=adamw)
    losses = [trainer.step(batch) for batch in batches[:2]]
    trainer.save(tmp_path / "checkpoint")
    plan = make_plan(case, layout, 3)
    models = [fresh(other_weights(case.model)) for _ in range(plan.num_ranks)]

    def work(transport: Any) -> list[float]:
        trainer = Trainer(models[transport.rank], plan, transport, optimizer=adamw)
        trainer.load(tmp_path / "checkpoint")
        assert trainer.steps == 2
        return [trainer.step(batch) for batch in batches[2:]]

    for continued in on_threads(plan.num_ranks, work):
        assert losses + continued == pytest.approx(unbroken(case, plan, adamw, batches), rel=LIMIT, abs=0)


def other_weights(model: Model) -> Model:
    """The model as another process would have built it: what is loaded must come from the checkpoint."""
    changed = fresh(model)
    with torch.no_grad():
        for parameter in changed.captured.module.parameters():
            parameter.add_(1.0)
    return changed


def test_one_device_continues_what_a_trainer_saved(tmp_path: Path) -> None:
    case, batches = job_case(GPT2), job_batches(GPT2, 4)
    trainer = alone(case, optimizer=adamw)
    losses = [trainer.step(batch) for batch in batches[:2]]
    trainer.save(tmp_path / "checkpoint")
    one = OneDevice(other_weights(case.model), adamw)
    one.load(tmp_path / "checkpoint")
    losses += [one.step(batch, (4, 4, 4)) for batch in batches[2:]]
    assert losses == pytest.approx(unbroken(case, trainer.plan, adamw, batches), rel=LIMIT, abs=0)


def test_a_learning_rate_schedule_continues_too(tmp_path: Path) -> None:
    case, batches = job_case(GPT2), job_batches(GPT2, 5)
    options = {"optimizer": adamw, "scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=2, gamma=0.1)}
    whole = alone(case, **options)
    expected = [whole.step(batch) for batch in batches]
    first = alone(case, **options)
    losses = [first.step(batch) for batch in batches[:3]]
    first.save(tmp_path / "checkpoint")
    second = alone(case, **options)
    second.step(batches[0])  # what it has done before must not matter
    second.load(tmp_path / "checkpoint")
    assert losses + [second.step(batch) for batch in batches[3:]] == expected
    (rate,) = {group["lr"] for bucket in second.buckets.values() for group in bucket.optimizer.param_groups}
    assert rate == pytest.approx(1e-3 * 0.1**2)


# Contents


class Parts(nn.Module):
    """A tied weight, a buffer, a frozen parameter and one the loss never sees."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.second(self.norm(self.first(x)))).square().mean()


@pytest.fixture
def parts_case() -> Case:
    torch.manual_seed(0)
    return make_case(Parts(), [{"x": torch.randn(6, 4)}])


def names_in(folder: Path) -> set[str]:
    """Names of the tensors in a folder's safetensors files, read by hand: a length, a JSON header, data."""
    names: set[str] = set()
    for file in folder.glob("*.safetensors"):
        content = file.read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        names |= set(header) - {"__metadata__"}
    return names


def test_a_checkpoint_holds_safetensors_under_the_models_own_names(tmp_path: Path, parts_case: Case) -> None:
    trainer = alone(parts_case, optimizer=adamw)
    trainer.step(parts_case.batches[0])
    trainer.save(tmp_path / "checkpoint")
    module = parts_case.module
    own = {name for name, _ in [*module.named_parameters(), *module.named_buffers()]}
    assert names_in(tmp_path / "checkpoint" / "model") == own
    assert "second.weight" not in own, "a tied weight is kept once"
    trained = ["first.weight", "first.bias", "norm.weight", "norm.bias", "second.bias"]
    states = names_in(tmp_path / "checkpoint" / "optimizer")
    assert states == {f"{name}/{part}" for name in trained for part in ("step", "exp_avg", "exp_avg_sq")}
    suffixes = {file.suffix for file in (tmp_path / "checkpoint").rglob("*") if file.is_file()}
    assert suffixes == {".json", ".safetensors"}, "nothing that would have to be unpickled"


def test_the_original_model_loads_a_checkpoint(tmp_path: Path, parts_case: Case) -> None:
    trainer = alone(parts_case, optimizer=adamw)
    trainer.step(parts_case.batches[0])
    trainer.save(tmp_path / "checkpoint")
    module = Parts().double()
    found = load_tensors(tmp_path / "checkpoint" / "model")
    problems = module.load_state_dict(found, strict=False)
    assert problems.unexpected_keys == []
    assert problems.missing_keys == ["second.weight"]
    assert torch.equal(module.first.weight, trainer.state()["first.weight"])
    assert module.norm.num_batches_tracked == 3


# Errors


@pytest.fixture
def saved(tmp_path: Path, parts_case: Case) -> tuple[Trainer, Path]:
    trainer = alone(parts_case, optimizer=adamw)
    trainer.step(parts_case.batches[0])
    trainer.save(tmp_path / "checkpoint")
    return trainer, tmp_path / "checkpoint"


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, saved: tuple[Trainer, Path]) -> None:
    with pytest.raises(PlaitError, match="is not a checkpoint"):
        saved[0].load(tmp_path / "nowhere")
    with pytest.raises(PlaitError, match="is not a checkpoint"):
        saved[0].load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": "plait-checkpoint", "version": 2, "step": 1}', "has version 2; this Plait reads versions up to 1"),
        ('{"format": "plait-checkpoint", "version": "new", "step": 1}', "has version 'new'"),
        ('{"format": "plait-plan", "version": 1}', "is not a checkpoint"),
        ("[]", "is not a checkpoint"),
        ("{", "is not a checkpoint"),
    ],
    ids=["newer", "odd version", "a plan", "a list", "damaged"],
)
def test_a_header_that_cannot_be_read_is_refused(saved: tuple[Trainer, Path], content: str, message: str) -> None:
    trainer, path = saved
    (path / "plait.json").write_text(content)
    with pytest.raises(PlaitError, match=message):
        trainer.load(path)


def test_another_models_checkpoint_is_refused_and_changes_nothing(saved: tuple[Trainer, Path]) -> None:
    torch.manual_seed(1)
    other = alone(
        make_case(nn.Sequential(nn.Linear(4, 1)), [torch.randn(6, 4)], lambda o, b: o.mean()), optimizer=adamw
    )
    before = {name: tensor.clone() for name, tensor in other.state().items()}
    with pytest.raises(PlaitError, match=r"lacks 0\.\w+ .*another model"):
        other.load(saved[1])
    wider = Parts()
    wider.unused = nn.Linear(3, 3)
    wide = alone(make_case(wider, [{"x": torch.randn(6, 4)}]), optimizer=adamw)
    kept = {name: tensor.clone() for name, tensor in wide.state().items()}
    with pytest.raises(PlaitError, match=r"has unused\.\w+ of shape .*another model"):
        wide.load(saved[1])
    for trainer, state in ((other, before), (wide, kept)):
        assert trainer.steps == 0
        assert all(torch.equal(tensor, state[name]) for name, tensor in trainer.state().items())


def test_missing_files_are_told(saved: tuple[Trainer, Path]) -> None:
    trainer, path = saved
    for file in (path / "model").iterdir():
        file.unlink()
    with pytest.raises(PlaitError, match="lacks"):
        trainer.load(path)


def test_a_failing_save_leaves_the_old_checkpoint_as_it_was(saved: tuple[Trainer, Path], monkeypatch) -> None:
    trainer, path = saved
    old = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    trainer.step(trainer_batch())
    writes: list[Path] = []
    write = trainer_module_write(monkeypatch, writes)
    with pytest.raises(OSError, match="disk is full"):
        trainer.save(path)
    assert [folder.name for folder in writes] == ["model", "optimizer"]
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == old
    with pytest.raises(OSError, match="disk is full"):
        trainer.save(path.with_name("new"))
    assert not path.with_name("new").exists(), "half a checkpoint looks like one"
    monkeypatch.setattr("plait.run.checkpoint._write", write)
    trainer.save(path)
    assert checkpoint_step(path) == 2
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["checkpoint", "new.partial"]


def trainer_batch() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(6, 4).double()}


def trainer_module_write(monkeypatch: pytest.MonkeyPatch, writes: list[Path]) -> Any:
    """Lets the weights through and fails at the optimiser's state; returns what was there before."""
    from plait.run import checkpoint

    write = checkpoint._write

    def failing(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        writes.append(folder)
        if folder.name == "optimizer":
            raise OSError(28, "the disk is full")
        write(folder, tensors)

    monkeypatch.setattr(checkpoint, "_write", failing)
    return write


def test_saving_replaces_nothing_but_checkpoints(tmp_path: Path, saved: tuple[Trainer, Path]) -> None:
    trainer, _ = saved
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter-1.tex").write_text("years of work")
    with pytest.raises(PlaitError, match="exists and is not a checkpoint"):
        trainer.save(thesis)
    with pytest.raises(PlaitError, match="exists and is not a checkpoint"):
        trainer.save(thesis / "chapter-1.tex")
    assert (thesis / "chapter-1.tex").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    trainer.save(tmp_path / "empty")
    assert checkpoint_step(tmp_path / "empty") == 1
