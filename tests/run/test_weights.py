"""Weights in files: what is read, and what is said about files that do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from plait.errors import PlaitError
from plait.run.checkpoint import save_checkpoint
from plait.run.weights import Wanted, Weights, find_weights

STATE = {"first.weight": torch.rand(3, 2), "first.bias": torch.rand(3), "count": torch.tensor([4])}
WANTED = [Wanted((name,), tensor, required=True) for name, tensor in STATE.items()]


def saved(folder: Path, state: Any, name: str = "weights.safetensors") -> Path:
    path = folder / name
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def read(weights: Weights) -> dict[str, Tensor]:
    return {name: weights.read(name, tensor) for name, tensor in STATE.items()}


def assert_reads(path: Path) -> Weights:
    weights = find_weights(path, WANTED)
    for name, tensor in read(weights).items():
        assert torch.equal(tensor, STATE[name]) and tensor.dtype == STATE[name].dtype
    return weights


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt", "pytorch_model.bin"])
def test_one_file(name: str, tmp_path: Path) -> None:
    assert assert_reads(saved(tmp_path, STATE, name)).notes == ()


def test_folders(tmp_path: Path) -> None:
    plain, split, old, own = (tmp_path / name for name in ("plain", "split", "old", "own"))
    for folder in (plain, split, old):
        folder.mkdir()
    saved(plain, STATE)
    assert_reads(plain)
    saved(split, {"first.weight": STATE["first.weight"]}, "1.safetensors")
    saved(split, {"first.bias": STATE["first.bias"], "count": STATE["count"]}, "2.safetensors")
    assert_reads(split)
    saved(old, {"first.weight": STATE["first.weight"], "count": STATE["count"]}, "pytorch_model-1.bin")
    saved(old, {"first.bias": STATE["first.bias"]}, "pytorch_model-2.bin")
    places = {
        "first.weight": "pytorch_model-1.bin",
        "first.bias": "pytorch_model-2.bin",
        "count": "pytorch_model-1.bin",
    }
    (old / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    assert_reads(old)
    save_checkpoint(own, tensors=STATE, optimizers={}, parameters={}, step=3)
    assert_reads(own)


def test_numbers_come_in_the_models_precision(tmp_path: Path) -> None:
    path = saved(tmp_path, {name: t.bfloat16() if t.is_floating_point() else t for name, t in STATE.items()})
    found = find_weights(path, WANTED).read("first.weight", torch.empty(0, dtype=torch.float64))
    assert found.dtype == torch.float64
    assert torch.equal(found, STATE["first.weight"].bfloat16().double())


def test_what_is_read_is_a_copy(tmp_path: Path) -> None:
    path = saved(tmp_path, STATE, "weights.pt")
    find_weights(path, WANTED).read("first.bias", STATE["first.bias"]).zero_()
    assert_reads(path)


def test_a_common_prefix_is_left_out_and_said(tmp_path: Path) -> None:
    weights = assert_reads(saved(tmp_path, {f"module.{name}": tensor for name, tensor in STATE.items()}))
    assert "begins with 'module.', which was left out" in weights.notes[0]


def test_an_uncertain_prefix_is_not_guessed(tmp_path: Path) -> None:
    twice = {f"{prefix}.{name}": tensor.clone() for prefix in ("student", "teacher") for name, tensor in STATE.items()}
    with pytest.raises(PlaitError, match=r"lack first.weight, first.bias, count .*3 of 3 tensors are missing"):
        find_weights(saved(tmp_path, twice), WANTED)


def test_any_name_of_a_tied_tensor_will_do(tmp_path: Path) -> None:
    tied = [Wanted(("head", "first.weight"), STATE["first.weight"], required=True), *WANTED[1:]]
    assert torch.equal(
        find_weights(saved(tmp_path, STATE), tied).read("head", STATE["first.bias"]), STATE["first.weight"]
    )
    path = saved(tmp_path, {**STATE, "head": STATE["first.weight"] + 1}, "both.pt")
    with pytest.raises(PlaitError, match=r"head and first.weight differ, but are one tensor in the model"):
        find_weights(path, tied)


def test_tensors_the_loss_ignores_may_be_missing(tmp_path: Path) -> None:
    optional = [*WANTED, Wanted(("pooler",), torch.zeros(2), required=False)]
    assert set(find_weights(saved(tmp_path, STATE), optional).entries) == set(STATE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"first.bias": s["first.bias"]}, r"lack first.weight, count \(the nearest name there is .*2 of 3"),
        (lambda s: {**s, "first.bias": torch.rand(4)}, r"first.bias has shape \(4,\), but the model's has \(3,\)"),
        (lambda s: {**s, "first.bias": torch.tensor([1, 2, 3])}, r"first.bias holds whole numbers, but the model's"),
        (lambda s: {**s, "count": torch.rand(1)}, "count holds floating-point numbers, but the model's holds whole"),
    ],
    ids=["missing", "shape", "whole", "float"],
)
@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt"])
def test_a_file_of_another_model(change: Any, message: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(PlaitError, match=message):
        find_weights(saved(tmp_path, change(STATE), name), WANTED)


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    (tmp_path / "text.safetensors").write_text("no tensors at all")
    (tmp_path / "text.pt").write_text("no tensors at all")
    saved(tmp_path, {"model": STATE, "step": 3}, "training.pt")
    saved(tmp_path, {"first": nn.Linear(2, 2)}, "pickled.pt")
    saved(tmp_path, [1, 2], "list.pt")
    (tmp_path / "empty").mkdir()
    for name, message in {
        "nothing.safetensors": "there is no such file or folder. Give a .safetensors file",
        "text.safetensors": "cannot be read as safetensors",
        "text.pt": "cannot be read as tensors alone",
        "training.pt": r"holds a dictionary of model, step. Save that part of it by itself",
        "pickled.pt": "cannot be read as tensors alone",
        "list.pt": "must hold a state_dict",
        "empty": "the folder has no .safetensors file and no index",
    }.items():
        with pytest.raises(PlaitError, match=message):
            find_weights(tmp_path / name, WANTED)


@pytest.mark.parametrize(
    "index",
    ["[", "{}", '{"weight_map": {"first.bias": "gone.safetensors"}}', '{"weight_map": {"other": "1.safetensors"}}'],
)
def test_an_index_that_is_wrong(index: str, tmp_path: Path) -> None:
    saved(tmp_path, STATE, "1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(PlaitError, match=r"does not agree with its files|cannot be read as safetensors"):
        find_weights(tmp_path, WANTED)


def test_a_name_in_two_files(tmp_path: Path) -> None:
    saved(tmp_path, STATE, "1.safetensors")
    saved(tmp_path, STATE, "2.safetensors")
    with pytest.raises(PlaitError, match=r"first.bias is in several of its files|is in several of its files"):
        find_weights(tmp_path, WANTED)
