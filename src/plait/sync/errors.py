"""What goes wrong with a sum."""


class SumFailed(RuntimeError):
    """A sum that cannot be had: says which, where, and why. What it was caused by is its cause."""

    def __init__(self, rank: int, what: str, why: BaseException) -> None:
        first_line = (str(why).splitlines() or [type(why).__name__])[0][:200]
        super().__init__(f"rank {rank} could not sum {what}: {first_line}")
        self.rank = rank
