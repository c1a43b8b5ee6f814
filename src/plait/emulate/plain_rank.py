"""One rank of a plan as plain PyTorch runs it, over a timed device.

All traffic of the bed is shrunk, so DistributedDataParallel's buckets are too.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.parallel import DistributedDataParallel

from plait.emulate.plain import Layer, PlainStage, PlainTask
from plait.emulate.timed import Device

_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}
_BUCKET_MIB = 25.0  # DistributedDataParallel's own
_CPU = torch.device("cpu")


class _Timed(torch.autograd.Function):
    """Takes its time in either direction; its parameter's gradient is there when the backward is done."""

    @staticmethod
    def forward(ctx: Any, device: Device, layer: Layer, x: Tensor, weight: Tensor | None, width: int) -> Tensor:
        device.work(layer.forward)
        ctx.device, ctx.layer, ctx.weight, ctx.shape = device, layer, weight, x.shape
        return x.new_empty(x.shape[0], width) if width != x.shape[1] else x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.device.work(ctx.layer.backward)
        x_gradient = gradients[0] if gradients[0].shape == ctx.shape else gradients[0].new_empty(ctx.shape)
        weight_gradient = None if ctx.weight is None else torch.ones_like(ctx.weight)
        return None, None, x_gradient, weight_gradient, None


class TimedModule(nn.Module):
    """A stage's layers. Its input and output are rows of as many numbers as make up their bytes."""

    def __init__(self, device: Device, stage: PlainStage) -> None:
        super().__init__()
        self._device = device
        self._stage = stage
        sizes = [layer.parameter_bytes // 4 for layer in stage.layers]
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in sizes if size])
        places = iter(range(len(sizes)))
        self._weight_of = [next(places) if size else None for size in sizes]
        if not len(self.weights):
            self.weights.append(nn.Parameter(torch.zeros(1)))  # so that there is something to go back to
            self._weight_of[0] = 0

    def forward(self, x: Tensor) -> Tensor:
        last = len(self._stage.layers) - 1
        weights = list(self.weights)
        for number, (layer, place) in enumerate(zip(self._stage.layers, self._weight_of, strict=True)):
            weight = None if place is None else weights[place]
            width = max(1, self._stage.output_bytes // 4) if number == last else x.shape[1]
            x = _Timed.apply(self._device, layer, x, weight, width)
        return x


class PlainRank:
    """One rank of the plain program; `step` runs a step."""

    def __init__(self, task: PlainTask, device: Device, payload: float) -> None:
        self._task = task
        self._device = device
        rank = dist.get_rank()
        # All ranks make all groups, in one order: torch.distributed asks for that.
        pipelines = [dist.new_group(ranks) for ranks in task.pipelines]
        columns = [dist.new_group(list(ranks)) for ranks in zip(*task.pipelines, strict=True)]
        ((pipeline, column),) = [(p, ranks.index(rank)) for p, ranks in enumerate(task.pipelines) if rank in ranks]
        modules: list[nn.Module] = [TimedModule(device, stage) for stage in task.stages[rank]]
        if len(task.pipelines) > 1:
            modules = [
                DistributedDataParallel(
                    module,
                    process_group=columns[column],
                    bucket_cap_mb=_BUCKET_MIB / payload,
                    gradient_as_bucket_view=True,
                    # Otherwise buckets are made anew after the first backward, of which a stage has many.
                    find_unused_parameters=len(task.pipelines[0]) > 1,
                )
                for module in modules
            ]
        self._modules = modules
        self._update = task.update[rank]
        num_stages = len(task.pipelines[0]) * len(modules)
        self._run = self._data_parallel if num_stages == 1 else self._pipeline(pipelines[pipeline], pipeline, column)

    def step(self) -> None:
        self._run()
        self._device.work(self._update)
        for module in self._modules:
            module.zero_grad(set_to_none=True)

    def _data_parallel(self) -> None:
        (module,) = self._modules
        for _ in range(self._task.micro_batches - 1):
            with module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext():
                module(torch.ones(1, 1)).sum().backward()
        module(torch.ones(1, 1)).sum().backward()

    def _pipeline(self, group: dist.ProcessGroup, pipeline: int, position: int) -> Callable[[], None]:
        ranks = self._task.pipelines[pipeline]
        length = len(ranks)
        num_stages = length * len(self._modules)
        stages = [
            PipelineStage(module, position + number * length, num_stages, _CPU, group=group)
            for number, module in enumerate(self._modules)
        ]
        for stage in stages:  # a group numbers its ranks in their order, whatever that of their stages
            stage.stage_index_to_group_rank = {
                index: sorted(ranks).index(ranks[index % length]) for index in range(num_stages)
            }
        count = self._task.micro_batches
        inputs = torch.ones(count, 1)

        def loss(output: Tensor, target: Tensor) -> Tensor:
            del target
            return output.sum()

        schedule: Any = _SCHEDULES[self._task.schedule]
        made = schedule(stages if self._task.schedule == "interleaved" else stages[0], count, loss_fn=loss)
        first, last = position == 0, position == length - 1

        def run() -> None:
            if first and last:
                made.step(inputs, target=inputs)
            elif first:
                made.step(inputs)
            elif last:
                made.step(target=inputs)
            else:
                made.step()

        return run
