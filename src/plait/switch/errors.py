"""What goes wrong at an aggregating switch."""


class SwitchUnavailable(RuntimeError):
    """The switch cannot sum this tensor, for a reason that is no defect: whoever asked goes another way."""
