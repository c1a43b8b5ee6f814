"""Random operations draw one device's numbers wherever they run."""

import torch
from graph_models import DropoutInRegion, Dropouts, Example
from stage_runner import run_staged
from torch import Tensor, nn
from torch.nn import functional as F

from plait.graph import build_graph
from plait.graph.cut import cut
from plait.graph.randomness import Randomness
from plait.graph.stage import build_stage


def drawn(**where: int) -> Tensor:
    """What the model's dropouts leave of its loss, with the run standing at `where`."""
    torch.manual_seed(0)
    module = Dropouts().double()
    batch = module.batch()
    model = build_graph(module, batch)
    (whole,) = cut(model.graph, [])
    stage = build_stage(model, whole)
    for name, value in where.items():
        setattr(stage.randomness, name, value)
    return stage.module(6, *batch.values())[-1].detach()


def test_the_same_place_in_the_run_draws_the_same_numbers():
    assert torch.equal(drawn(seed=3, step=5, micro_batch=1), drawn(seed=3, step=5, micro_batch=1))


def test_another_seed_step_micro_batch_or_row_draws_others():
    results = [drawn(), drawn(seed=1), drawn(step=1), drawn(micro_batch=1), drawn(row_offset=1)]
    assert len({result.item() for result in results}) == len(results)


def test_what_was_drawn_before_does_not_matter():
    first = drawn()
    torch.rand(100)
    assert torch.equal(drawn(), first)


def test_every_node_draws_from_a_stream_of_its_own():
    randomness = Randomness(seed=1, step=2)
    assert len({randomness.stream(node) for node in range(1000)}) == 1000


class NoDropout(Example):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.0)
        self.lstm = nn.LSTM(8, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = F.dropout(self.first(x), 0.5, training=False)
        attended = F.scaled_dot_product_attention(hidden[:, None], hidden[:, None], hidden[:, None], dropout_p=0.0)
        return F.mse_loss(self.lstm(attended)[0][:, 0], t)


def test_operations_that_draw_nothing_are_not_seeded():
    module = NoDropout().double()
    model = build_graph(module, module.batch())
    assert not any("seeded" in node.name for node in model.captured.module.graph.nodes)


def test_a_dropout_inside_a_region_is_seeded_with_its_region():
    module = DropoutInRegion().double()
    batch = module.batch()
    model = build_graph(module, batch)
    torch.manual_seed(1)
    first = run_staged(model, batch)
    torch.manual_seed(2)
    assert torch.equal(run_staged(model, batch).loss, first.loss)
