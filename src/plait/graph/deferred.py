"""Products of activations and weights whose weight gradients can wait.

The backward of a matrix product, convolution or embedding has two halves: the gradient of the activations, for which
earlier stages wait, and the gradients of the weights, for which nobody does before they are summed over replicas. The
functions here compute what PyTorch's do, but their backward does only the first half and leaves the second with a
`WeightGradients`, to be run when the schedule has the time.

Only what is a parameter itself, or a view of one, has its gradient put off. Anything else that is made from parameters
has a backward of its own, which runs once, with the first half.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, fx

from plait.graph.randomness import operator_of
from plait.graph.rows import argument

aten = torch.ops.aten

VIEWS = {
    aten.t.default,
    aten.numpy_T.default,
    aten.transpose.int,
    aten.permute.default,
    aten.view.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.squeeze.dim,
    aten.unsqueeze.default,
}


class PutOff(NamedTuple):
    """What adds to the gradients of these weights, parameters or views of them."""

    add: Callable[[], None]
    weights: tuple[Tensor, ...]

    @property
    def parameters(self) -> list[Tensor]:
        return [weight if weight.is_leaf or weight._base is None else weight._base for weight in self.weights]


@dataclass
class WeightGradients:
    """What backwards have put off, in their order."""

    waiting: list[PutOff] = field(default_factory=list)

    def take(self) -> list[PutOff]:
        """What the last backward has put off."""
        taken, self.waiting = self.waiting, []
        return taken


def run_deferred(waiting: list[PutOff], done: Callable[[PutOff], None] | None = None) -> None:
    """Adds what was put off to the weights' gradients, and says so of each.

    The last put off comes first, because what it needs is most likely still in a cache. Each is forgotten as soon as
    it is done, with the activations it holds.
    """
    with torch.no_grad():
        while waiting:
            latest = waiting.pop()
            latest.add()
            if done is not None:
                done(latest)


# Which nodes


@dataclass(frozen=True)
class Deferrable:
    """A node as the call that puts its weights' gradients off; `weights` are the nodes those are read from."""

    function: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    weights: tuple[fx.Node, ...]


def deferrable(node: fx.Node, is_parameter: Callable[[fx.Node], bool]) -> Deferrable | None:
    """How to put off the gradients of the parameters `node` multiplies by; None where that cannot be."""
    if node.op != "call_function" or node.target not in _WAYS:
        return None
    function, names, weight_names = _WAYS[node.target]
    arguments = {name: argument(node, name) for name in names}
    weights: list[Any] = [arguments[name] for name in weight_names if arguments[name] is not None]
    if not all(_is_weight(weight, is_parameter) for weight in weights) or not _is_plain(node, arguments):
        return None
    return Deferrable(function, tuple(arguments.values()), tuple(weights))


def _is_weight(value: object, is_parameter: Callable[[fx.Node], bool]) -> bool:
    while isinstance(value, fx.Node) and value.target in VIEWS:
        value = value.args[0]
    return isinstance(value, fx.Node) and value.op == "get_attr" and is_parameter(value)


def _is_plain(node: fx.Node, arguments: dict[str, Any]) -> bool:
    """Is it the case the formulas below are written for? Not a batch of matrices, say, nor a single image."""
    kind = operator_of(node)._opname  # type: ignore[union-attr]
    dims = {name: value.meta["val"].dim() for name, value in arguments.items() if isinstance(value, fx.Node)}
    if kind == "embedding":
        return not arguments["sparse"]
    if kind.startswith("conv"):
        return dims["input"] == dims["weight"]
    if kind == "addmm":
        return dims["self"] == 1 and argument(node, "beta") == argument(node, "alpha") == 1
    return dims[_WAYS[node.target][2][0]] == 2 and min(dims.values()) > 0


# How they compute


def linear(later: WeightGradients, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _Deferred.apply(later, _LINEAR, x, weight, bias)


def product(later: WeightGradients, x: Tensor, weight: Tensor) -> Tensor:
    return _Deferred.apply(later, _PRODUCT, x, weight, None)


def product_and_sum(later: WeightGradients, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return _Deferred.apply(later, _PRODUCT, x, weight, bias)


def convolution(
    later: WeightGradients,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    return transposed_convolution(later, x, weight, bias, stride, padding, None, groups, dilation)


def transposed_convolution(
    later: WeightGradients,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int] | None,
    groups: int,
    dilation: Sequence[int],
) -> Tensor:
    """A plain convolution where there is no `output_padding`."""
    dims = weight.dim() - 2
    every = [list(sizes) * (dims // len(sizes)) for sizes in (stride, padding, dilation, output_padding or [0])]
    formula = _Convolution(every[0], every[1], every[2], output_padding is not None, every[3], groups)
    return _Deferred.apply(later, formula, x, weight, bias)


def embedding(
    later: WeightGradients, weight: Tensor, indices: Tensor, padding_idx: int, by_frequency: bool, _: bool
) -> Tensor:
    return _Deferred.apply(later, _Embedding(padding_idx, by_frequency), indices, weight, None)


class _Formula(Protocol):
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...

    def input_gradient(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor: ...

    def add_weight_gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None: ...


class _Deferred(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, later: WeightGradients, formula: _Formula, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, bias)
        ctx.later, ctx.formula = later, formula
        return formula.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        (gradient,) = gradients
        if gradient is None:  # whoever reads the result has no gradient for it
            return None, None, None, None, None
        x, weight, bias = ctx.saved_tensors
        add = partial(ctx.formula.add_weight_gradients, gradient, x, weight, bias)
        ctx.later.waiting.append(PutOff(add, (weight,) if bias is None else (weight, bias)))
        input_gradient = ctx.formula.input_gradient(gradient, x, weight) if ctx.needs_input_grad[2] else None
        return None, None, input_gradient, None, None


class _Linear:
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    def input_gradient(self, gradient: Tensor, _: Tensor, weight: Tensor) -> Tensor:
        return gradient @ weight

    def add_weight_gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        rows = _rows(gradient)
        _add_product(weight, rows.t(), _rows(x))
        if bias is not None:
            _add(bias, rows.sum(0))


class _Product:
    """Of rows and a matrix, as `matmul` has it."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x @ weight if bias is None else torch.addmm(bias, x, weight)

    def input_gradient(self, gradient: Tensor, _: Tensor, weight: Tensor) -> Tensor:
        return gradient @ weight.t()

    def add_weight_gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        rows = _rows(gradient)
        _add_product(weight, _rows(x).t(), rows)
        if bias is not None:
            _add(bias, rows.sum(0))


@dataclass(frozen=True)
class _Convolution:
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    def _options(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return aten.convolution(x, weight, bias, *self._options())

    def _is_product(self, *images: Tensor, weight: Tensor) -> bool:
        """Is it one matrix product per image? On CPUs those are faster than halves of PyTorch's backward.

        Short types would round after every image.
        """
        return (
            weight.device.type == "cpu"
            and weight.dtype in (torch.float32, torch.float64)
            and weight[0, 0].numel() == self.groups == 1
            and not self.transposed
            and set(self.stride) == {1}
            and set(self.padding) == {0}
            and all(tensor.is_contiguous() for tensor in (*images, weight))
        )

    def input_gradient(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        if self._is_product(gradient, x, weight=weight):
            return torch.matmul(weight.flatten(1).t(), gradient.flatten(2)).view_as(x)
        mask = [True, False, False]
        return aten.convolution_backward(gradient, x, weight, None, *self._options(), mask)[0]

    def add_weight_gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        if self._is_product(gradient, x, weight=weight):
            _add_products(weight, gradient.flatten(2), x.flatten(2).transpose(1, 2))
            if bias is not None:
                _add(bias, gradient.flatten(2).sum((0, 2)))
            return
        sizes, mask = (None, [False, True, False]) if bias is None else (list(bias.shape), [False, True, True])
        found = aten.convolution_backward(gradient, x, weight, sizes, *self._options(), mask)
        _add(weight, found[1])
        if bias is not None:
            _add(bias, found[2])


@dataclass(frozen=True)
class _Embedding:
    padding_idx: int
    by_frequency: bool

    def forward(self, x: Tensor, weight: Tensor, _: Tensor | None) -> Tensor:
        return aten.embedding(weight, x, self.padding_idx, self.by_frequency)

    def input_gradient(self, *_: Tensor) -> Tensor:
        raise AssertionError("indices have no gradient")

    def add_weight_gradients(self, gradient: Tensor, x: Tensor, weight: Tensor, _: Tensor | None) -> None:
        size = weight.shape[0]
        _add(weight, aten.embedding_dense_backward(gradient, x, size, self.padding_idx, self.by_frequency))


_LINEAR, _PRODUCT = _Linear(), _Product()


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _add(weight: Tensor, gradient: Tensor) -> None:
    if not weight.is_leaf:  # a view: back to the parameter
        torch.autograd.backward(weight, gradient)
    elif weight.grad is None:
        weight.grad = gradient
    else:
        weight.grad.add_(gradient)


def _add_product(weight: Tensor, left: Tensor, right: Tensor) -> None:
    """As `_add` of the product, where possible without a tensor for it."""
    if weight.is_leaf and weight.grad is not None:
        weight.grad.addmm_(left, right)
    else:
        _add(weight, left @ right)


def _add_products(weight: Tensor, left: Tensor, right: Tensor) -> None:
    """Adds the products of two batches of matrices to the gradient of a weight of any shape."""
    if weight.is_leaf and weight.grad is not None and weight.grad.is_contiguous():
        weight.grad.flatten(1).addbmm_(left, right)
    else:
        _add(weight, left.new_zeros(weight.shape).flatten(1).addbmm_(left, right).view_as(weight))


_Way = tuple[Callable[..., Tensor], tuple[str, ...], tuple[str, ...]]
_CONVOLUTION: _Way = (
    convolution,
    ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    ("weight", "bias"),
)
_TRANSPOSED: _Way = (
    transposed_convolution,
    ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
    ("weight", "bias"),
)
_EMBEDDING: _Way = (
    embedding,
    ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse"),
    ("weight",),
)
# By operator: the function here, the arguments of the operator's schema it takes, and which of those are weights.
_WAYS: dict[Any, _Way] = {
    aten.linear.default: (linear, ("input", "weight", "bias"), ("weight", "bias")),
    aten.matmul.default: (product, ("self", "other"), ("other",)),
    aten.mm.default: (product, ("self", "mat2"), ("mat2",)),
    aten.addmm.default: (product_and_sum, ("self", "mat1", "mat2"), ("mat2", "self")),
    aten.embedding.default: _EMBEDDING,
    aten.conv1d.default: _CONVOLUTION,
    aten.conv2d.default: _CONVOLUTION,
    aten.conv3d.default: _CONVOLUTION,
    aten.conv_transpose1d.default: _TRANSPOSED,
    aten.conv_transpose2d.input: _TRANSPOSED,
    aten.conv_transpose3d.input: _TRANSPOSED,
}
