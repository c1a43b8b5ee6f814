"""What can be captured, and what a user is told who gives something that cannot."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from graph_models import Chain, Example
from stage_runner import assert_same, run_eagerly, run_staged
from torch import Tensor, nn

from plait.graph import CaptureError, batch_rows, build_graph
from plait.jobs import load_job


def capture_error(module: nn.Module, batch=None, **options) -> str:
    with pytest.raises(CaptureError) as caught:
        build_graph(module, module.batch() if batch is None else batch, **options)
    return str(caught.value)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


class CustomFunction(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(Doubled.apply(self.first(x)), t)


def test_a_custom_autograd_function_is_refused_with_its_module_and_line():
    message = capture_error(CustomFunction().double())
    assert "the model (CustomFunction) calls Doubled" in message
    assert f'file "{__file__}", line ' in message
    assert "torch.library.custom_op" in message


class DataDependentBranch(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if x.sum() > 0:
            x = -x
        return F.mse_loss(self.first(x), t)


def test_a_branch_on_a_tensors_value_names_its_module_and_line():
    message = capture_error(DataDependentBranch().double())
    assert "module the model (DataDependentBranch) branches on a tensor's value" in message
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.strip() == "if x.sum() > 0:")
    assert f'file "{__file__}", line {line}' in message
    assert "torch.where" in message


def test_after_a_refused_capture_modules_and_functions_are_as_before():
    apply, assign = torch.autograd.Function.__dict__["apply"], nn.Module.__setattr__
    module = CustomFunction().double()
    capture_error(module)
    assert torch.autograd.Function.__dict__["apply"] is apply
    assert nn.Module.__setattr__ is assign
    assert not module._forward_pre_hooks


class ReturnsLogits(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.first(x)


def test_a_model_that_returns_no_loss_is_told_what_it_returned():
    assert "the loss is a tensor of shape" in capture_error(ReturnsLogits().double())


class ReturnsNothing(Example):
    def forward(self, x: Tensor, t: Tensor) -> None:
        return None


def test_a_model_that_returns_nothing_is_told_how_to_give_a_loss():
    message = capture_error(ReturnsNothing().double())
    assert "NoneType" in message
    assert "def loss(outputs, batch)" in message


class FixedBatchSize(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(self.first(x).view(6, 2, 4).flatten(1), t)


def test_a_fixed_batch_size_is_refused_with_the_size_and_the_fix():
    message = capture_error(FixedBatchSize().double())
    assert "exactly 6 rows" in message
    assert "x.size(0)" in message


class RowsAreTime(Example):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(self.lstm(self.first(x)[:, None])[0][:, 0], t)


def test_rows_taken_for_the_steps_of_a_recurrent_layer_are_refused_as_a_fixed_size():
    assert "exactly 6 rows" in capture_error(RowsAreTime().double())


@pytest.mark.parametrize("batch", [{}, {"x": 3}, (torch.tensor(1.0),)], ids=["empty", "numbers", "scalar"])
def test_a_batch_without_rows_is_refused(batch):
    assert "no tensor with a row per sample" in capture_error(Chain(), batch)


def test_a_batch_of_no_rows_is_refused():
    assert "no rows" in capture_error(Chain(), {"x": torch.zeros(0, 8), "t": torch.zeros(0, 8)})


class NewBuffer(Example):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        self.mean = self.mean * 0.9 + hidden.detach().mean(0) * 0.1
        return F.mse_loss(hidden, t)


def test_a_buffer_given_a_new_tensor_is_refused_because_the_capture_would_lose_it():
    message = capture_error(NewBuffer().double())
    assert "gives its buffer 'mean' a new tensor" in message
    assert "self.mean.copy_(...)" in message


# What does work


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x)


@pytest.mark.parametrize(
    ("batch", "loss"),
    [
        (torch.randn(4, 4), lambda outputs, batch: outputs.square().mean()),
        ((torch.randn(4, 4), torch.randn(4, 4)), lambda outputs, batch: F.mse_loss(outputs, batch[1])),
        ([torch.randn(4, 4), torch.randn(4, 4)], lambda outputs, batch: F.mse_loss(outputs, batch[1])),
        (
            {"x": torch.randn(4, 4), "labels": torch.randint(0, 4, (4,))},
            lambda outputs, batch: F.cross_entropy(outputs, batch["labels"]),
        ),
    ],
    ids=["tensor", "tuple", "list", "dictionary"],
)
def test_a_batch_may_be_any_of_these_with_a_loss_beside_the_model(batch, loss):
    module = Plain()
    model = build_graph(module, batch, loss=loss)
    assert_same(run_staged(model, batch, [1]), run_eagerly(module, batch, loss=loss), tolerance=1e-6)


def test_one_row_is_enough_to_capture_a_model_for_any_number_of_rows():
    module = Chain().double()
    one = {"x": torch.randn(1, 8).double(), "t": torch.randn(1, 8).double()}
    model = build_graph(module, one)
    batch = module.batch()
    assert batch_rows(batch) == 6
    assert_same(run_staged(model, batch, [2]), run_eagerly(module, batch))


def test_capturing_changes_neither_parameters_nor_buffers():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    build_graph(module, torch.randn(6, 4), loss=lambda outputs, batch: outputs.square().mean())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_a_gpt2_is_captured_without_memory_for_its_weights():
    job = load_job("gpt2")
    with torch.device("meta"):
        module = job.model()
    batch = {name: tensor.to("meta") for name, tensor in next(job.batches(2, 0)).items()}
    model = build_graph(module, batch, loss=job.loss, name=job.name)
    tied = [p for p in model.graph.parameters if p.name == "token_embedding.weight"]
    assert sum(p.num_bytes for p in model.graph.parameters) // 4 == sum(p.numel() for p in module.parameters())
    assert len(tied[0].atoms) == 2  # the embedding and the head
    assert not model.unused
    assert [mixer.remedy for mixer in model.graph.row_mixers] == ["count"]
