"""Python branches on a tensor's value, while a model is captured.

`if torch.rand([]) < p:` has no answer while only shapes are known. The capture answers for it, goes on along that
path, and leaves a mark in the graph: which value was asked for, and when. `branches` makes the paths one graph.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor
from torch.fx.node import has_side_effect

from plait.graph.errors import Place, user_line

_LIBRARY = torch.library.Library("plait", "DEF")
_LIBRARY.define("decide(Tensor condition, int number) -> Tensor")
torch.library.register_fake("plait::decide", lambda condition, number: torch.empty_like(condition), lib=_LIBRARY)
MARK = torch.ops.plait.decide.default
has_side_effect(MARK)  # nobody uses its result, and yet no pass may drop it


@dataclass(frozen=True)
class Question:
    """Where a path has asked."""

    place: Place
    line: str


@dataclass
class Path:
    """One way through the model: which of its questions, by number, are answered with yes."""

    yes: frozenset[int] = frozenset()
    questions: list[Question] = field(default_factory=list)

    def answer(self, condition: Tensor, where: Question) -> bool:
        number = len(self.questions)
        self.questions.append(where)
        torch.ops.plait.decide(condition, number)
        return number in self.yes


@contextmanager
def answered(path: Path, stack: list[Place]) -> Iterator[None]:
    """While active, a tensor without a value answers `bool(tensor)` as `path` says."""
    original = Tensor.__bool__

    def ask(tensor: Tensor) -> bool:
        if not isinstance(tensor, FakeTensor) or tensor.constant is not None or tensor.numel() != 1:
            return original(tensor)
        return path.answer(tensor, Question(stack[-1], user_line(traceback.extract_stack())))

    Tensor.__bool__ = ask  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Tensor.__bool__ = original  # type: ignore[method-assign]


def marks(graph: fx.Graph) -> list[fx.Node]:
    """The marks in the order in which the questions were asked."""
    return graph.find_nodes(op="call_function", target=MARK)


def is_random(mark: fx.Node) -> bool:
    """Was the question about random numbers alone, so that data cannot change the answer?"""
    seen: set[fx.Node] = set()
    pending = list(mark.all_input_nodes)
    while pending:
        node = pending.pop()
        if node.op == "placeholder" or (node.op == "get_attr" and "lifted_tensor" not in str(node.target)):
            return False
        if node not in seen:
            seen.add(node)
            pending += node.all_input_nodes
    return True
