"""Which paths through a model are captured, and what is made of them."""

import linecache
import traceback
from collections.abc import Callable

from torch import fx

from plait.graph.capture.branches import DoesNotFit, SideBySide, check_all_turned, join
from plait.graph.capture.decisions import Path, Question, is_random, marks
from plait.graph.errors import CaptureError, is_users

Take = Callable[[Path], fx.GraphModule]


class BranchError(CaptureError):
    """A branch on a tensor's value that cannot be captured."""

    def __init__(self, question: Question, why: str) -> None:
        super().__init__(
            f"module {question.place} branches on a tensor's value ({question.line}): {why}. Write it with tensor "
            "operations (torch.where, masks), or move it into a module of its own, which then stays in one piece.",
            at=question.place,
            cause=f"it branches on a tensor's value, {question.line}",
            branches=True,
        )


def one_graph(take: Take) -> fx.GraphModule:
    """The graph of the path without a yes; with random branches, of all paths as one."""
    path = Path()
    first = take(path)
    questions = marks(first.graph)
    chosen = [number for number, mark in enumerate(questions) if is_random(mark)]
    for number, question in enumerate(path.questions):
        if number not in chosen and not _is_check(take, number):
            raise BranchError(question, "which of the two ways is right depends on the data")
    if not chosen:
        for mark in questions:
            first.graph.erase_node(mark)
        return first
    reasons = []
    for usual in (frozenset[int](), frozenset(chosen)):
        try:
            return _joined(take, take(Path(usual)) if usual else first, usual, chosen)
        except DoesNotFit as reason:
            reasons.append(reason)
    raise BranchError(path.questions[chosen[0]], f"on a random number, and the paths cannot be joined: {reasons[0]}")


def _joined(take: Take, first: fx.GraphModule, usual: frozenset[int], chosen: list[int]) -> fx.GraphModule:
    def beside(turned: list[int]) -> SideBySide:
        return SideBySide(first, take(Path(usual ^ frozenset(turned))), turned)

    paths = [beside(turned) for turned in (chosen[::2], chosen[1::2]) if turned]
    if len(chosen) > 1:
        check_all_turned(beside(chosen), paths)
    join(first, paths, usual)
    return first


def _is_check(take: Take, number: int) -> bool:
    """Does the other answer only lead to an error, as a check of the labels does?"""
    try:
        take(Path(frozenset({number})))
    except Exception as error:  # noqa: BLE001 - the user's own
        cause = error.__cause__ or error
        frame = traceback.extract_tb(cause.__traceback__)[-1]
        if not is_users(frame):
            return False  # PyTorch's error: the other way does not work here, which does not make it wrong elsewhere
        return linecache.getline(frame.filename, frame.lineno or 0).strip().startswith(("raise", "assert"))
    return False
