"""When sums go to the switch, and when they do not because it failed.

Ranks decide alike without asking each other, for they go by the outcomes they have agreed on alone, and those of all
sums but the last `IN_FLIGHT` are known before the next one begins.
"""

IN_FLIGHT = 4  # sums under way at once
_PAUSE, _LONGEST = 16, 1024  # sums that go another way before the switch is tried again


class Turns:
    """After a failure so many sums go another way, twice as many after the next.

    >>> turns = Turns()
    >>> turns.outcome(7, failed=True)
    >>> turns.may_go(8), turns.stays_away(8), turns.stays_away(11), turns.may_go(27), turns.attempt
    (False, False, True, True, 1)
    """

    def __init__(self) -> None:
        self.attempt = 0  # how often the switch was given up
        self._failed_at = self._again_at = -IN_FLIGHT
        self._streak = 0

    def outcome(self, number: int, *, failed: bool) -> None:
        """What became of sum `number`, in the order of sums. Sums that were on their way to the switch when it failed
        fail with it."""
        if not failed:
            self._streak = 0
        elif number >= self._again_at:
            self._failed_at = number
            self._again_at = number + IN_FLIGHT + min(_PAUSE << self._streak, _LONGEST)
            self._streak += 1
            self.attempt += 1

    def may_go(self, number: int) -> bool:
        """As far as this rank knows by now."""
        return number >= self._again_at or number <= self._failed_at

    def stays_away(self, number: int) -> bool:
        """As all ranks know once a sum so much later begins."""
        return self._failed_at + IN_FLIGHT <= number < self._again_at
