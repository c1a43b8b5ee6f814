"""Checkpoints any plan can load: tensors under their original names, in torch.distributed.checkpoint's
safetensors form. Nothing in them is unpickled, and they are written whole or not at all.

    DIR/model/*.safetensors       parameters and buffers
    DIR/optimizer/*.safetensors   `parameter/state`, for example `h.0.attn.weight/exp_avg`
    DIR/plait.json                format, version, step
"""

import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from plait.errors import PlaitError
from plait.run.tensor import Parts

VERSION = 1
WHOLE = Parts()  # of a rank that has no parts of tensors


def save_checkpoint(
    path: Path | str,
    *,
    tensors: Mapping[str, Tensor],
    optimizers: Mapping[str, torch.optim.Optimizer],
    parameters: Mapping[str, nn.Parameter],
    step: int,
    parts: Parts = WHOLE,
) -> None:
    """Every rank gives what it holds, `tensors` whole; equal names on several ranks are written once."""
    path = Path(path)
    check_replaceable(path)
    partial = path.with_name(path.name + ".partial")
    if _first_rank():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    _barrier()
    _write(partial / "model", {n: t.detach().cpu().contiguous() for n, t in tensors.items()})
    _write(partial / "optimizer", _optimizer_tensors(optimizers, parameters, parts))
    if _first_rank():
        (partial / "plait.json").write_text(
            json.dumps({"format": "plait-checkpoint", "version": VERSION, "step": step})
        )
        _replace(path, partial)
    _barrier()


def check_replaceable(path: Path) -> None:
    """Saving replaces what is there, so that must be nothing, an empty folder or an older checkpoint."""
    if path.is_file() or (path.is_dir() and any(path.iterdir()) and not (path / "plait.json").is_file()):
        raise PlaitError(
            f"{path} exists and is not a checkpoint, and saving there would replace it. Choose a folder of its own, "
            f"for example {path / 'checkpoint' if path.is_dir() else path.with_name('checkpoint')}."
        )


def _replace(path: Path, new: Path) -> None:
    """Puts `new` where `path` is; at every moment one of the two is there whole."""
    old = path.with_name(path.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    new.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(
    path: Path | str,
    *,
    tensors: Mapping[str, Tensor],
    optimizers: Mapping[str, torch.optim.Optimizer],
    parameters: Mapping[str, nn.Parameter],
    parts: Parts = WHOLE,
) -> int:
    """Fills the tensors and optimiser states this rank holds; returns the step the checkpoint was taken at."""
    path = Path(path)
    step = checkpoint_step(path)
    found = _read(path / "model", dict.fromkeys(tensors))
    found = {name: parts.own(name, whole) for name, whole in found.items()}
    for name, tensor in tensors.items():
        if found[name].shape != tensor.shape:
            raise PlaitError(
                f"checkpoint {path} has {name} of shape {tuple(found[name].shape)}, the model {tuple(tensor.shape)}: "
                "it was taken from another model."
            )
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(found[name])
    _restore_optimizers(path / "optimizer", optimizers, parameters, parts)
    return step


def checkpoint_step(path: Path | str) -> int:
    """The step a checkpoint was taken at; PlaitError where there is none that this Plait can read."""
    return int(_header(Path(path))["step"])


def load_tensors(path: Path | str) -> dict[str, Tensor]:
    """All tensors of one folder of a checkpoint, without process groups."""
    return _read(Path(path), None)


def _header(path: Path) -> dict[str, Any]:
    try:
        header = json.loads((path / "plait.json").read_text())
    except (OSError, ValueError) as error:
        raise PlaitError(f"{path} is not a checkpoint: {error}. Give the folder that `Trainer.save` wrote.") from error
    if not isinstance(header, dict) or header.get("format") != "plait-checkpoint":
        raise PlaitError(f"{path} is not a checkpoint: its plait.json is of something else.")
    version = header.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise PlaitError(
            f"checkpoint {path} has version {version!r}; this Plait reads versions up to {VERSION}. Update Plait."
        )
    return header


def _write(folder: Path, tensors: dict[str, Tensor]) -> None:
    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns when there is no process group, which is meant
        dcp.save(tensors, storage_writer=writer, no_dist=not dist.is_initialized())


def _read(folder: Path, names: dict[str, None] | None) -> dict[str, Tensor]:
    reader = dcp.HuggingFaceStorageReader(str(folder))
    described = reader.read_metadata().state_dict_metadata
    wanted = described if names is None else names
    missing = [name for name in wanted if name not in described]
    if missing:
        raise PlaitError(
            f"checkpoint {folder} lacks {missing[0]} ({len(missing)} of {len(wanted)} tensors missing): "
            "it was taken from another model."
        )
    found: dict[str, Tensor] = {}
    for name in wanted:
        entry = described[name]
        assert isinstance(entry, dcp.metadata.TensorStorageMetadata)
        found[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(found, storage_reader=reader, no_dist=True)
    return found


def _optimizer_tensors(
    optimizers: Mapping[str, torch.optim.Optimizer], parameters: Mapping[str, nn.Parameter], parts: Parts
) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
    tensors = {}
    for optimizer in optimizers.values():
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                if value is not None:
                    whole = parts.whole(names[parameter], torch.as_tensor(value).detach())
                    tensors[f"{names[parameter]}/{key}"] = whole.cpu().contiguous()
    # Every rank must have something to write, and one that has no state still takes part.
    return tensors or {"plait/none": torch.zeros(1)}


def _restore_optimizers(
    folder: Path,
    optimizers: Mapping[str, torch.optim.Optimizer],
    parameters: Mapping[str, nn.Parameter],
    parts: Parts,
) -> None:
    described = dcp.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    wanted = [name for name in described if name.rpartition("/")[0] in parameters]
    found = _read(folder, dict.fromkeys(wanted))
    owner = {p: optimizer for optimizer in optimizers.values() for g in optimizer.param_groups for p in g["params"]}
    for name, tensor in found.items():
        parameter_name, _, key = name.rpartition("/")
        parameter = parameters[parameter_name]
        if parameter in owner:
            value = tensor if tensor.dim() == 0 else parts.own(parameter_name, tensor).to(parameter.device)
            owner[parameter].state[parameter][key] = value


def _first_rank() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
