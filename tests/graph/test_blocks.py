"""Repeated blocks: layers that compute the same are found, and nothing else is taken for a layer."""

import pytest
import torch
from graph_models import Convolutions, LongSkips, Recurrent, captured
from torch import Tensor, nn

from plait.graph import build_graph, repeated_blocks

WIDTH = 8


class Layer(nn.Module):
    def __init__(self, inner: int = WIDTH, *, slope: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.expand = nn.Linear(WIDTH, inner)
        self.activation = nn.LeakyReLU(slope)
        self.output = nn.Linear(inner, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.output(self.activation(self.expand(self.norm(x))))


ATOMS_PER_LAYER = 5


class Layers(nn.Module):
    """Layers between two norms, the first of which looks like the beginning of a layer."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x).square().mean()


def blocks_of(module: nn.Module, **options: bool):
    return repeated_blocks(build_graph(module, {"x": torch.randn(4, WIDTH)}, **options))


def test_layers_of_the_same_shape_are_one_block_each():
    (block,) = blocks_of(Layers(*(Layer() for _ in range(5))))
    assert (block.first_atom, block.atoms_per_block, block.count) == (1, ATOMS_PER_LAYER, 5)
    assert block.modules == tuple(f"layers.{n}" for n in range(5))
    assert str(block) == "5 identical blocks of 5 atoms: layers.0 … layers.4"


def test_layers_of_two_shapes_are_two_kinds_of_block():
    narrow, wide = blocks_of(Layers(*(Layer(inner) for inner in (8, 8, 8, 16, 16))))
    assert (narrow.count, narrow.modules[-1]) == (3, "layers.2")
    assert (wide.count, wide.modules[0], wide.first_atom) == (2, "layers.3", 1 + 3 * ATOMS_PER_LAYER)


def test_layers_that_take_turns_make_blocks_of_two():
    (block,) = blocks_of(Layers(*(Layer(inner) for inner in (8, 16) * 3)))
    assert (block.atoms_per_block, block.count, block.modules) == (2 * ATOMS_PER_LAYER, 3, ("layers",) * 3)


def test_a_number_in_a_layer_tells_it_from_the_others():
    (block,) = blocks_of(Layers(Layer(), Layer(), Layer(slope=0.2)))
    assert block.modules == ("layers.0", "layers.1")


def test_a_frozen_layer_is_not_like_a_trained_one():
    layers = [Layer() for _ in range(4)]
    layers[1].requires_grad_(False)
    (block,) = blocks_of(Layers(*layers))
    assert block.modules == ("layers.2", "layers.3")


class CalledAgain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layer = Layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(self.layer(self.first(x)))).square().mean()


def test_a_layer_called_again_is_repeated_too():
    (block,) = blocks_of(CalledAgain())
    assert (block.count, str(block)) == (3, "3 identical blocks of 5 atoms: layer")


class ReadsPastAnother(nn.Module):
    """Between the input of the first layer and the layer stands what all layers read, as Llama's rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        scale = self.scale.exp()
        for layer in self.layers:
            x = layer(x.sin()) * scale
        return x.square().mean()


def test_the_first_layer_may_read_from_further_back():
    # The searched order would compute the scale inside the first layer, just before its use.
    (block,) = blocks_of(ReadsPastAnother(), search_order=False)
    assert (block.atoms_per_block, block.count) == (3, 4)
    assert block.first_atom == 3


class SharedBias(nn.Module):
    """Every layer reads what was computed once before them, as T5's layers their position bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias.exp()
        x = self.first(x)
        for layer in self.layers:
            x = layer(x + bias)
        return x.square().mean()


def test_a_value_that_all_layers_share_does_not_part_them():
    (block,) = blocks_of(SharedBias())
    assert (block.atoms_per_block, block.count) == (2, 4)


class Crossed(nn.Module):
    """The same operations, but the last layer reads from further back than the others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        made = [self.layers[0](x).exp()]
        for source in (0, 1, 2, 0):
            made.append(self.layers[source](made[source]).tanh() * made[-1])
        return made[-1].square().mean()


def test_layers_wired_otherwise_are_not_alike():
    (block,) = blocks_of(Crossed())
    assert (block.atoms_per_block, block.count) == (3, 3)


@pytest.mark.parametrize("example", [Convolutions, LongSkips, Recurrent], ids=lambda example: example.__name__)
def test_blocks_lie_in_the_chain_and_apart(example):
    _, _, model = captured(example)
    end = 0
    for block in repeated_blocks(model):
        assert block.first_atom >= end and block.count >= 2
        end = block.first_atom + block.num_atoms
        for atom in range(block.first_atom, end - block.atoms_per_block):
            pair = model.atom_nodes[atom], model.atom_nodes[atom + block.atoms_per_block]
            assert [n.target for n in pair[0]] == [n.target for n in pair[1]]
    assert end <= len(model.graph.atoms)
