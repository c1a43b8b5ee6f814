"""The shape the transformers share."""

from dataclasses import dataclass

from plait.errors import PlaitError


@dataclass(frozen=True)
class TransformerShape:
    """The sizes of a GPT-2 or a BERT; `sequence` is the longest row it can read."""

    layers: int
    width: int
    heads: int
    sequence: int
    vocabulary: int
    dropout: float

    def __post_init__(self) -> None:
        if self.width % self.heads:
            nearest = -(-self.width // self.heads) * self.heads
            raise PlaitError(
                f"width={self.width} cannot be shared by heads={self.heads}: the width must be a multiple of "
                f"the number of heads, for example width={nearest}."
            )
