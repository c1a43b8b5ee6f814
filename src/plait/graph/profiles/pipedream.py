"""PipeDream's profiles: one line per node, then one line per edge.

    node2 -- Conv2d(3, 64, …) -- forward_compute_time=22.3, backward_compute_time=6.4, activation_size=1024.0, \
parameter_size=93184.0
    <tab>node1 -- node2

Times are milliseconds and sizes bytes, both for one batch. How many rows that was, the file does not say. A node
with several outputs lists their sizes: `[1024.0; 64.0]`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from plait.errors import PlaitError
from plait.graph.profiles.profile import Profile, ProfileEdge, ProfileNode, Way

DEFAULT_ROWS = 256  # what PipeDream's profiler takes where no batch size is given
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


@dataclass(frozen=True)
class _Line:
    """A line of the file, for messages."""

    file: str
    number: int
    text: str

    def error(self, problem: str, fix: str) -> PlaitError:
        return PlaitError(f"profile {self.file}, line {self.number}: {problem}. {fix}.")


@dataclass(frozen=True)
class _Node:
    line: _Line
    description: str
    forward: float
    backward: float
    activation: float
    parameters: float


def parse_pipedream(text: str, name: str, *, rows: int) -> Profile:
    """The profile in `text`, measured with `rows` rows."""
    lines = [_Line(name, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    nodes: dict[str, _Node] = {}
    edges: dict[tuple[str, str], _Line] = {}
    for line in lines:
        if line.text[0].isspace():
            edges.setdefault(_edge(line), line)
        else:
            node_name, node = _node(line)
            if node_name in nodes:
                raise line.error(
                    f"{node_name} is there already, on line {nodes[node_name].line.number}", "Rename or remove one"
                )
            nodes[node_name] = node
    for ends, line in edges.items():
        _check_ends(ends, nodes, line)
    in_order = sorted(nodes, key=_number)  # the file's own order is a hash table's
    return Profile(
        name=name,
        nodes=tuple(ProfileNode(n, nodes[n].description, (_way(nodes[n], rows),)) for n in in_order),
        edges=tuple(_flow(ends, nodes, rows) for ends in edges),
        rows=rows,
    )


def _node(line: _Line) -> tuple[str, _Node]:
    name, *middle = line.text.strip().split(" -- ")
    at = next((i for i, part in enumerate(middle) if part.startswith(_FIELDS[0])), None)
    if at is None:
        raise line.error(
            f"{_short(line.text)!r} is no node", f"Write `node1 -- description -- {'=…, '.join(_FIELDS)}=…`"
        )
    found = dict(part.partition("=")[::2] for part in middle[at].split(", "))
    numbers = [_field(found, key, line) for key in _FIELDS]
    return name.strip(), _Node(line, " -- ".join(middle[:at]), *numbers)


def _field(found: Mapping[str, str], key: str, line: _Line) -> float:
    """A number, or the sum of a list of them."""
    if key not in found:
        raise line.error(f"{key} is missing", f"Every node needs {', '.join(_FIELDS)}: profile again")
    written = found[key].strip()
    parts = written.removeprefix("[").removesuffix("]").split(";") if written.startswith("[") else [written]
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = [math.nan]
    if not (math.isfinite(sum(numbers)) and min(numbers) >= 0):
        unit = "milliseconds" if key.endswith("time") else "bytes"
        raise line.error(f"{key}={written} must be {unit}, a finite number of 0 or more", "Mend it or profile again")
    return sum(numbers)


def _edge(line: _Line) -> tuple[str, str]:
    ends = [end.strip() for end in line.text.split(" -- ")]
    if len(ends) != 2 or not all(ends):
        raise line.error(
            f"{_short(line.text.strip())!r} is no edge", "Write two nodes after a tab, as in `node1 -- node2`"
        )
    return ends[0], ends[1]


def _check_ends(ends: tuple[str, str], nodes: Mapping[str, _Node], line: _Line) -> None:
    for end in ends:
        if end not in nodes:
            raise line.error(
                f"the edge {ends[0]} -- {ends[1]} names {end}, which no line describes", "Add the node or drop the edge"
            )


def _way(node: _Node, rows: int) -> Way:
    # What takes no time makes no tensor of its own: a view, a size, an item of a tuple.
    makes_a_tensor = node.forward > 0 or node.backward > 0
    return Way(
        degree=1,
        recompute=False,
        forward_seconds=node.forward / 1e3 / rows,
        backward_seconds=node.backward / 1e3 / rows,
        parameter_bytes=round(node.parameters),
        saved_bytes=node.activation / rows if makes_a_tensor else 0.0,
    )


def _flow(ends: tuple[str, str], nodes: Mapping[str, _Node], rows: int) -> ProfileEdge:
    num_bytes = nodes[ends[0]].activation
    if 0 < num_bytes < rows:  # less than a byte for a row: a size or a count, the same for any batch
        return ProfileEdge(*ends, math.ceil(num_bytes), per_row=False)
    return ProfileEdge(*ends, math.ceil(num_bytes / rows))


def _number(name: str) -> tuple[float, str]:
    """Nodes are numbered as the model made them."""
    digits = re.search(r"\d+$", name)
    return (int(digits[0]) if digits else math.inf, name)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
