"""Does a plan fit its model, and would it compute its gradients?"""

import math

from plait.errors import PlaitError
from plait.graph import Graph, Parameter
from plait.plan.plan import Plan, StagePlan


def validate(plan: Plan, graph: Graph) -> None:
    """Raises PlaitError where the plan does not fit the model or would not compute its gradients."""
    if plan.fingerprint != graph.fingerprint:
        raise PlaitError(
            f"the plan was made for {plan.model} (fingerprint {plan.fingerprint}), but this model is {graph.name} "
            f"(fingerprint {graph.fingerprint}). Plan again with `plait plan` for this model and its options."
        )
    _check_stages(plan, graph)
    _check_devices(plan)
    _check_splits(plan, graph)
    if plan.batch_size < plan.micro_batches * plan.most_replicas:
        raise PlaitError(
            f"batch size {plan.batch_size} is smaller than {plan.micro_batches} micro-batches x "
            f"{plan.most_replicas} replicas = {plan.micro_batches * plan.most_replicas}: some replica would have "
            "no row to work on. Use a larger batch, fewer micro-batches or fewer replicas."
        )
    for index, (stage, part) in enumerate(zip(plan.stages, plan.cut(graph), strict=True)):
        bad = [mixer for mixer in part.row_mixers if not mixer.remedy]
        if stage.replicas > 1 and bad:
            where = f"module {bad[0].module}" if bad[0].module else "the model"
            raise PlaitError(
                f"stage {index} has {stage.replicas} replicas, which splits a micro-batch's rows, but {bad[0].node} "
                f"in {where} cannot be split: {bad[0].why}. Put that stage on one device, or make the loss a mean "
                "over rows that do not depend on one another."
            )


def _check_stages(plan: Plan, graph: Graph) -> None:
    end = 0
    for index, stage in enumerate(plan.stages):
        if stage.start != end or stage.end <= stage.start:
            raise PlaitError(
                f"stage {index} holds atoms {stage.start} to {stage.end}, but the stages before it end at {end}: every "
                "atom is in one stage, in order. The plan is damaged: plan again."
            )
        end = stage.end
    if end != len(graph.atoms):
        raise PlaitError(
            f"the stages end at atom {end}, but {graph.name} has {len(graph.atoms)} atoms. The plan is damaged: "
            "plan again."
        )


def _check_devices(plan: Plan) -> None:
    holder: dict[int, StagePlan] = {}
    for index, stage in enumerate(plan.stages):
        for device in stage.devices:
            if not 0 <= device < len(plan.cluster.devices):
                raise PlaitError(
                    f"stage {index} uses device {device}, but cluster {plan.cluster.name} has devices 0 to "
                    f"{len(plan.cluster.devices) - 1}. Plan again for this cluster."
                )
            if stage.devices.count(device) > 1:
                raise PlaitError(f"stage {index} has device {device} twice; give each device of a stage once.")
            other = holder.setdefault(device, stage)
            if (other.devices, other.shares, other.tensor) != (stage.devices, stage.shares, stage.tensor):
                raise PlaitError(
                    f"device {device} is given to two stages that do not share all their devices, row shares and "
                    f"tensor groups ({list(other.devices)} in groups of {other.tensor} and {list(stage.devices)} in "
                    f"groups of {stage.tensor}); give them the same, or devices of their own."
                )
        if stage.tensor < 1 or len(stage.devices) % stage.tensor:
            raise PlaitError(
                f"stage {index} has {len(stage.devices)} devices for tensor groups of {stage.tensor}: every replica "
                "needs a whole group. Give it a multiple of that, or smaller groups."
            )
        if len(stage.shares) != stage.replicas or not all(0 < share < math.inf for share in stage.shares):
            raise PlaitError(
                f"stage {index} has shares {list(stage.shares)} for {stage.replicas} replicas: one positive "
                "number per replica is needed."
            )


def _check_splits(plan: Plan, graph: Graph) -> None:
    """What a stage splits it holds and can split, and stages that share a parameter hold the same parts of it."""
    known = {parameter.name: parameter for parameter in graph.parameters}
    for index, stage in enumerate(plan.stages):
        for name, dimension in stage.split.items():
            _check_split(index, stage, known.get(name), name, dimension)
    for parameter in graph.parameters:
        holders = [s for s in plan.stages if any(s.start <= atom < s.end for atom in parameter.atoms)]
        ways = {(stage.tensor, stage.split.get(parameter.name)) for stage in holders}
        if len(ways) > 1 and any(tensor > 1 for tensor, _ in ways):
            raise PlaitError(
                f"{parameter.name} is held by several stages, on tensor groups that differ in size or in how they "
                f"split it ({', '.join(_way(*way) for way in sorted(ways, key=str))}): their gradients could not be "
                "added. Give these stages the same `tensor`, and the parameter the same `split`."
            )


def _way(tensor: int, dimension: int | None) -> str:
    return f"{'whole' if dimension is None else f'split along dimension {dimension}'} on {tensor}"


def _check_split(index: int, stage: StagePlan, parameter: Parameter | None, name: str, dimension: int) -> None:
    if stage.tensor == 1:
        raise PlaitError(
            f"stage {index} splits {name}, but its replicas are single devices. Set `tensor`, or leave `split` out."
        )
    if parameter is None or not any(stage.start <= atom < stage.end for atom in parameter.atoms):
        raise PlaitError(f"stage {index} splits {name}, which is no parameter or buffer of it. Plan again.")
    if not 0 <= dimension < len(parameter.shape):
        raise PlaitError(
            f"stage {index} splits {name} along dimension {dimension}, but its shape is {list(parameter.shape)}: "
            f"dimensions are 0 to {len(parameter.shape) - 1}. Plan again."
        )
    if parameter.shape[dimension] < stage.tensor:
        raise PlaitError(
            f"stage {index} splits {name} of shape {list(parameter.shape)} along dimension {dimension} over "
            f"{stage.tensor} devices: some would have nothing of it. Leave it whole, or use fewer devices."
        )
