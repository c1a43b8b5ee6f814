"""Random models under random plans train like one device."""

import torch
from comparison import assert_trains_like_one_device, make_case, make_plan
from hypothesis import Phase, assume, given, settings
from random_models import WIDTH, Operation, PlanShape, RandomModel, models, plan_shapes


@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(models(), plan_shapes())
def test_random_models_under_random_plans_train_like_one_device(operations: list[Operation], shape: PlanShape) -> None:
    torch.manual_seed(0)
    batches = [
        {"x": torch.randn(rows, WIDTH), "labels": torch.randint(0, 3, (rows,))}
        for rows in (shape.rows, shape.short_rows)
    ]
    case = make_case(RandomModel(operations), batches)
    assume(len(case.model.graph.atoms) >= len(shape.placement))
    plan = make_plan(
        case,
        shape.layout,
        shape.micro_batches,
        placement=shape.placement,
        recompute=shape.recompute,
        schedule=shape.schedule,
        lanes=shape.lanes,
        sync=shape.sync,
        overlap=shape.overlap,
        shares=shape.shares,
        boundaries=shape.boundaries(len(case.model.graph.atoms)),
        bucket_bytes=shape.bucket_bytes,
    )
    assert_trains_like_one_device(case, plan, clip_norm=shape.clip_norm, floor=1e-3)
