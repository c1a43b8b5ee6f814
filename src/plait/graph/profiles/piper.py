"""Piper's profiles: JSON with nodes, edges in bytes, and per node its ways to run by tensor-parallel degree.

Times are seconds for one sample, forward and backward together; `memoryUsageA` is held for every sample in
flight, `memoryUsageB` once. A sample is one row here.
"""

import json
import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plait.errors import PlaitError
from plait.graph.profiles.profile import Profile, ProfileEdge, ProfileNode, Way

_FORWARD_SHARE = 1 / 3  # of forward and backward together, where no recomputing way tells the forward's time

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Degree = Annotated[int, Field(ge=1)]


class _Way(BaseModel):
    model_config = ConfigDict(extra="ignore")
    id: str
    timePerSample: Amount  # noqa: N815 - the file's own names
    parameterSize: Amount  # noqa: N815
    memoryUsageA: Amount  # noqa: N815
    memoryUsageB: Amount  # noqa: N815
    syncTimeFw: dict[str, Amount]  # noqa: N815
    syncTimeBw: dict[str, Amount]  # noqa: N815

    @property
    def recompute(self) -> bool:
        return "recomp" in self.id.lower()


class _Node(BaseModel):
    id: int
    name: str = "node"
    TMPCs: dict[Degree, list[_Way]]


class _Edge(BaseModel):
    sourceId: int  # noqa: N815
    destId: int  # noqa: N815
    communicationCost: Amount  # noqa: N815


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore")
    nodes: list[_Node]
    edges: list[_Edge]


def parse_piper(text: str, name: str) -> Profile:
    """The profile in `text`."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise PlaitError(f"profile {name}{line}: not valid JSON ({error}). Mend it, or get the file again.") from error
    try:
        parsed = _File.model_validate(content)
    except ValidationError as error:
        raise PlaitError(
            f"profile {name}: {_what_is_wrong(error)}. Mend it, or give an input file of Piper or a graph.txt of "
            "PipeDream."
        ) from error
    _check(parsed, name)
    return Profile(
        name=name,
        nodes=tuple(ProfileNode(str(node.id), node.name, _ways(node)) for node in parsed.nodes),
        edges=tuple(
            ProfileEdge(str(edge.sourceId), str(edge.destId), math.ceil(edge.communicationCost))
            for edge in parsed.edges
        ),
        rows=1,
    )


def _ways(node: _Node) -> tuple[Way, ...]:
    return tuple(_way(degree, way, ways) for degree, ways in node.TMPCs.items() for way in ways)


def _way(degree: int, way: _Way, beside: list[_Way]) -> Way:
    forward = _forward_seconds(beside)
    return Way(
        degree=degree,
        recompute=way.recompute,
        forward_seconds=forward,
        backward_seconds=max(way.timePerSample - forward, 0.0),
        parameter_bytes=round(way.parameterSize),
        saved_bytes=way.memoryUsageA,
        fixed_bytes=way.memoryUsageB,
        forward_exchange=way.syncTimeFw,
        backward_exchange=way.syncTimeBw,
    )


def _forward_seconds(ways: list[_Way]) -> float:
    """Recomputing runs the forward once more, so the difference to the plain way is the forward's time."""
    plain = next((way.timePerSample for way in ways if not way.recompute), None)
    again = next((way.timePerSample for way in ways if way.recompute), None)
    if plain is None:
        return (again or 0.0) / 4  # forward, forward again, and a backward twice as long
    if again is not None and 0 < again - plain < plain:
        return again - plain
    return plain * _FORWARD_SHARE


def _check(parsed: _File, name: str) -> None:
    known: set[int] = set()
    for node in parsed.nodes:
        if node.id in known:
            raise PlaitError(f"profile {name}: two nodes have id {node.id}. Give each node an id of its own.")
        known.add(node.id)
        if not any(not way.recompute for way in node.TMPCs.get(1, [])):
            raise PlaitError(
                f"profile {name}: node {node.id} has no way to run on one device without recomputation (an entry of "
                'TMPCs["1"] whose id does not say "recomp"), which planning starts from. Add it.'
            )
    for edge in parsed.edges:
        for end in (edge.sourceId, edge.destId):
            if end not in known:
                raise PlaitError(
                    f"profile {name}: the edge {edge.sourceId} -> {edge.destId} names node {end}, which is not among "
                    "the nodes. Add the node or drop the edge."
                )


def _what_is_wrong(error: ValidationError) -> str:
    first: Any = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "the file"
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place} = {first['input']!r:.60}: {first['msg']}"
