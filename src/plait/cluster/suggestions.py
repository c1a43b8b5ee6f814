"""The "did you mean" half of an error message."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence naming the closest known word, or nothing when none is close; the fix follows it.

    >>> did_you_mean("v10", ["v100", "a100"])
    'Did you mean "v100"? '
    """
    by_lower_case = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower_case, n=1, cutoff=0.6)
    return f'Did you mean "{by_lower_case[close[0]]}"? ' if close else ""


def listed(names: Iterable[str], *, at_most: int = 24) -> str:
    """Names separated by commas, cut short when there are very many."""
    names = list(names)
    more = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {more} more" if more > 0 else "")
