"""Pydantic's validation errors, told as Plait tells errors: the value, the rule it breaks, the fix."""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from plait.cluster.suggestions import did_you_mean, listed
from plait.cluster.units import UnitError, as_written
from plait.errors import PlaitError


class UnknownKeyError(PlaitError):
    """A key that its table does not have."""

    def __init__(self, key: str, known: list[str]) -> None:
        self.key = key
        self.rule = f"is not a known key. {did_you_mean(key, known)}The keys here are {listed(known)}"
        super().__init__(f"{key} {self.rule}")


# What to write where a required key is missing.
_EXAMPLES = {
    "name": 'name = "node"',
    "kind": 'kind = "v100"',
    "bandwidth": 'bandwidth = "25 Gbit/s"',
    "latency": 'latency = "20 us"',
    "between": 'between = ["node0/gpu0", "node1/gpu0"]',
    "to": 'to = "spine"',
    "flops": 'flops = "30 TFLOP/s"',
    "memory": 'memory = "24 GiB"',
    "memory_bandwidth": 'memory_bandwidth = "900 GB/s"',
}

_RULES = {
    "int_type": "must be a whole number without quotes; write e.g. 4",
    "int_from_float": "must be a whole number; write e.g. 4",
    "float_type": "must be a number without quotes; write e.g. 0.9",
    "finite_number": "must be a finite number; write e.g. 0.9",
    "string_type": 'must be text in quotes; write e.g. "node"',
}


def describe(error: ValidationError) -> str:
    """One paragraph for the first problem, and how many there are.

    A mistyped key comes first: the key it was meant to be is then reported missing too.
    """
    problems = sorted(error.errors(), key=lambda problem: not isinstance(_cause(problem), UnknownKeyError))
    text = _describe_one(problems[0])
    return text if len(problems) == 1 else f"{text} (problem 1 of {len(problems)} in this file)"


def toml_path(location: tuple[int | str, ...]) -> str:
    """
    >>> toml_path(("hosts", 0, "uplink", "bandwidth"))
    'hosts[0].uplink.bandwidth'
    """
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _cause(problem: ErrorDetails) -> Exception | None:
    return problem.get("ctx", {}).get("error")


def _describe_one(problem: ErrorDetails) -> str:
    path, value, kind = toml_path(problem["loc"]), problem["input"], problem["type"]
    cause = _cause(problem)
    if isinstance(cause, UnknownKeyError):
        return f"{path}{'.' if path else ''}{cause.key} {cause.rule}"
    if isinstance(cause, UnitError):
        return f"{path} = {as_written(cause.value)} {cause.rule}"
    if cause is not None:
        return f"{path}: {cause}"
    if kind == "missing":
        key = str(problem["loc"][-1])
        table = toml_path(problem["loc"][:-1]) or "the file"
        return f"{table} has no {key}, and it must; add e.g. {_EXAMPLES.get(key, key + ' = …')}"
    if kind == "list_type":
        brackets = f"[[{path}]]" if isinstance(value, dict) else f"{path} = [ … ]"
        return f"{path} must be a list; write {brackets}"
    if kind in ("model_type", "model_attributes_type", "dict_type", "dataclass_type"):
        key = path.split(".")[-1]
        return f"{path} = {as_written(value)} must be a table; write {key} = {{ … }} with its keys"
    if kind in ("greater_than", "greater_than_equal", "less_than_equal"):
        rule = problem["msg"].removeprefix("Input should be ").replace("greater than or equal to", "at least")
        return f"{path} = {as_written(value)} must be {rule}; change it or remove it"
    if kind == "literal_error":
        return f"{path} = {as_written(value)} must be {problem['ctx']['expected']}; write one of these"
    rule = _RULES.get(kind, problem["msg"])
    return f"{path} = {as_written(value)} {rule}"
