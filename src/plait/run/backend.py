"""What the executor needs of whoever computes: code on a device, compiled or not, or a clock that stands for one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from plait.plan.rows import Span
from plait.program import Bucket

if TYPE_CHECKING:
    from plait.run.stage import InFlight


@dataclass(frozen=True)
class StepInputs:
    """The whole batch, the same on every rank: tensors by input name, and which of them have rows."""

    tensors: Mapping[str, Tensor]
    batched: Mapping[str, bool]
    step: int
    seed: int

    def rows(self, names: Sequence[str], first: int, last: int) -> dict[str, Tensor]:
        return {n: self.tensors[n][first:last] if self.batched[n] else self.tensors[n] for n in names}


@dataclass(frozen=True)
class MicroBatch:
    """Rows `offset..offset+num_rows-1` of the batch."""

    inputs: StepInputs
    index: int
    offset: int
    num_rows: int


Calls = Mapping[str, Callable[[], None]]  # what to do inside a computation, by bucket or value
NOTHING: Calls = {}


class Stage(Protocol):
    """One stage on one rank. Messages are tensors as they lie in memory; rows are numbered within the micro-batch."""

    def forward(
        self, micro: "InFlight", batch: MicroBatch, before_use: Calls = NOTHING, when_made: Calls = NOTHING
    ) -> None:
        """Makes the outputs of `micro.rows` from what was received.

        Calls each of `before_use` before it reads a parameter of that bucket, and each of `when_made` once that output
        is there, if it can tell when that is.
        """
        ...

    def backward(self, micro: "InFlight", loss_weight: float, when_final: Calls = NOTHING) -> None:
        """Makes the gradients of what was received; of the weights' gradients, all that cannot be put off.

        Calls those of `when_final` whose bucket's gradients are final, as far as it can tell.
        """
        ...

    def add_weight_gradients(self, micro: "InFlight", when_final: Calls = NOTHING) -> None:
        """The rest of the backward."""
        ...

    def buffer(self, name: str, rows: int) -> Tensor:
        """Memory for a message to come."""
        ...

    def joined(self, name: str, messages: Sequence[tuple[Span, Tensor]], rows: Span) -> Tensor:
        """One value of these rows from messages with parts of it; where they overlap they are added."""
        ...

    def output_rows(self, micro: "InFlight", name: str, first: int, last: int) -> Tensor:
        """A message with these rows of a value this stage has made."""
        ...

    def input_gradient_rows(self, micro: "InFlight", name: str, first: int, last: int) -> Tensor:
        """A message with these rows of the gradient of a value this stage has received."""
        ...


class Gradients(Protocol):
    """The gradients of a bucket, in one tensor where several ranks sum them, and the optimiser of its parameters."""

    bucket: Bucket
    flat: Tensor

    def clear(self) -> None: ...

    def step(self) -> None: ...

    def squared_norm(self) -> Tensor: ...

    def scale(self, factor: float) -> None: ...
