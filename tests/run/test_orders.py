"""Any order of actions, several stages on a rank, split backwards and recomputation train like one device."""

import pytest
from comparison import assert_trains_like_one_device, make_plan
from lanes import random_lanes
from test_exactness import case_of

INTERLEAVED = (0, 1, 0, 1)
V = (0, 1, 2, 3, 3, 2, 1, 0)
SEVERAL = {
    "interleaved": (INTERLEAVED, (1, 1)),
    "interleaved over replicas": (INTERLEAVED, (2, 2)),
    "v": (V, (1, 1, 1, 1)),
    "v over replicas": ((0, 1, 1, 0), (2, 2)),
    "neighbours": ((0, 0, 1, 1, 1), (2, 1)),
    "all on one": ((0, 0, 0), (1,)),
}


@pytest.mark.parametrize("split", [False, True], ids=["whole", "halves"])
@pytest.mark.parametrize("kind", SEVERAL)
@pytest.mark.parametrize("name", ["gpt2", "unet", "bert"])
def test_several_stages_on_a_rank_train_like_one_device(name: str, kind: str, split: bool) -> None:
    case, micro_batches = case_of(name)
    placement, layout = SEVERAL[kind]
    lanes = random_lanes(placement, micro_batches, split=range(len(placement)) if split else ())
    assert_trains_like_one_device(case, make_plan(case, layout, micro_batches, placement=placement, lanes=lanes))
