"""Errors a user can mend: each says the value, the rule it breaks and the fix.

The command line prints them as one paragraph and exits with code 2; anything else that escapes is a
defect of Plait and keeps its traceback.
"""


class PlaitError(ValueError):
    """Bad input (a file, a flag, a model): the message is all a user needs."""
