"""When the gradients of a bucket are final, in the middle of the last backward that adds to them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from plait.run.backend import Calls


class Countdown:
    """Per bucket how many additions to its gradients are left; at none its call is made. Calls forget themselves."""

    def __init__(self, left: Mapping[str, int], calls: Calls) -> None:
        self._left = dict(left)
        self._calls = calls
        for bucket, count in left.items():
            if not count:
                calls[bucket]()

    def less(self, bucket: str | None) -> None:
        """One fewer of this bucket, if it is one that is counted."""
        if bucket in self._left:
            self._left[bucket] -= 1
            if not self._left[bucket]:
                self._calls[bucket]()


@contextmanager
def told_of_each(parameters: Mapping[str, Sequence[nn.Parameter]], calls: Calls) -> Iterator[None]:
    """Inside, autograd's additions to these buckets' parameters are counted: one each, if any."""
    if not parameters:
        yield
        return
    left = Countdown({bucket: len(members) for bucket, members in parameters.items()}, calls)

    def counting(bucket: str) -> object:
        def count(_: Tensor) -> None:
            left.less(bucket)

        return count

    hooks = [
        member.register_post_accumulate_grad_hook(counting(bucket))
        for bucket, members in parameters.items()
        for member in members
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
