"""One device with gradient accumulation over the same micro-batches: what every parallel run must equal."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plait.cost import OptimizerFactory
from plait.graph import Model
from plait.graph.cut import cut
from plait.graph.stage import build_stage, place_stage
from plait.run.batch import named_inputs
from plait.run.checkpoint import load_checkpoint


class OneDevice:
    """A plain loop over the captured loss; shares nothing with the executor but the captured nodes."""

    def __init__(
        self,
        model: Model,
        optimizer: OptimizerFactory,
        *,
        seed: int = 0,
        clip_norm: float | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        (whole,) = cut(model.graph, [])
        self.device = torch.device(device)
        self.stage = build_stage(model, whole)
        place_stage(self.stage, self.device)
        self.captured = model.captured
        self.parameters: dict[str, nn.Parameter] = {
            p.name: self.stage.named_parameters()[p.name] for p in whole.parameters if p.trainable
        }
        self.optimizer = optimizer(list(self.parameters.values()))
        self.seed = seed
        self.clip_norm = clip_norm
        self.steps = 0

    def step(self, batch: Any, micro_batch_rows: Iterable[int]) -> float:
        """One step; returns the batch's loss."""
        inputs = named_inputs(self.captured, batch, device=self.device)
        sizes = list(micro_batch_rows)
        for parameter in self.parameters.values():
            parameter.grad = None
        total, first = 0.0, 0
        for micro_batch, rows in enumerate(sizes):
            self.stage.randomness.seed, self.stage.randomness.step = self.seed, self.steps
            self.stage.randomness.micro_batch = micro_batch
            own = [
                inputs.tensors[n][first : first + rows] if inputs.batched[n] else inputs.tensors[n]
                for n in self.stage.inputs
            ]
            (loss,) = self.stage.module(rows, *own)
            (loss * (rows / sum(sizes))).backward()
            total += loss.item() * rows / sum(sizes)
            first += rows
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.clip_norm)
        self.optimizer.step()
        self.steps += 1
        return total

    def load(self, path: Path | str) -> None:
        """Continues from a checkpoint that any plan wrote."""
        self.steps = load_checkpoint(
            path,
            tensors={**self.parameters, **self.buffers()},
            optimizers={"all": self.optimizer},
            parameters=self.parameters,
        )

    def gradients(self) -> dict[str, Tensor]:
        return {n: p.grad.clone() for n, p in self.parameters.items() if p.grad is not None}

    def buffers(self) -> dict[str, Tensor]:
        return dict(self.stage.named_buffers())
