"""What happens inside a computation, as calls for whoever computes. A call that was made is forgotten."""

from collections.abc import Callable, Mapping

from plait.run.backend import Calls


def once(calls: Mapping[str, Callable[[], None]]) -> dict[str, Callable[[], None]]:
    """The same calls, each to be made once."""
    left: dict[str, Callable[[], None]] = {}

    def made_by(name: str, call: Callable[[], None]) -> Callable[[], None]:
        def make() -> None:
            del left[name]
            call()

        return make

    left |= {name: made_by(name, call) for name, call in calls.items()}
    return left


def in_order(calls: Mapping[str, Callable[[], None]]) -> dict[str, Callable[[], None]]:
    """The same calls, each to be made once; one that is made before its turn waits for those before it."""
    waiting = list(calls)
    ready: set[str] = set()

    def made_by(name: str) -> Callable[[], None]:
        def make() -> None:
            ready.add(name)
            while waiting and waiting[0] in ready:
                calls[waiting.pop(0)]()

        return make

    return once({name: made_by(name) for name in calls})


def make_the_rest(calls: Calls) -> None:
    for call in list(calls.values()):
        call()
