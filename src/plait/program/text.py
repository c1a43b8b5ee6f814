"""A program's text form: what `plait plan --program` prints, and what a test can edit. Round-trips exactly."""

import json
from dataclasses import asdict

from plait.errors import PlaitError
from plait.graph import Value
from plait.program.instructions import Instruction, parse_instruction
from plait.program.program import Bucket, Edge, Program, StageTable

_HEADER = "plait-program 1"


def format_program(program: Program) -> str:
    lines = [_HEADER, f"micro-batches {json.dumps(program.micro_batch_rows)}"]
    lines += [f"stage {json.dumps(asdict(stage))}" for stage in program.stages]
    lines += [f"edge {json.dumps(asdict(edge))}" for edge in program.edges]
    lines += [f"bucket {json.dumps(asdict(bucket))}" for bucket in program.buckets]
    for rank, instructions in enumerate(program.ranks):
        lines.append(f"rank {rank}")
        lines += [f"  {instruction}" for instruction in instructions]
    return "\n".join(lines) + "\n"


def parse_program(text: str) -> Program:
    header, *lines = text.splitlines()
    if header.strip() != _HEADER:
        raise PlaitError(f"a program starts with {_HEADER!r}, not {header!r}.")
    sizes: tuple[int, ...] = ()
    stages, edges, buckets = [], [], []
    ranks: list[list[Instruction]] = []
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        if word == "micro-batches":
            sizes = tuple(json.loads(rest))
        elif word == "stage":
            stages.append(_stage(json.loads(rest)))
        elif word == "edge":
            edges.append(_edge(json.loads(rest)))
        elif word == "bucket":
            data = json.loads(rest)
            buckets.append(Bucket(**{**data, "parameters": tuple(data["parameters"]), "ranks": tuple(data["ranks"])}))
        elif word == "rank":
            ranks.append([])
        elif word:
            ranks[-1].append(parse_instruction(line))
    return Program(tuple(map(tuple, ranks)), tuple(stages), tuple(edges), tuple(buckets), sizes)


def _stage(data: dict[str, object]) -> StageTable:
    rows = tuple(tuple((a, b) for a, b in micro_batch) for micro_batch in data["rows"])  # type: ignore[attr-defined]
    return StageTable(**{**data, "ranks": tuple(data["ranks"]), "rows": rows})  # type: ignore[arg-type]


def _edge(data: dict[str, object]) -> Edge:
    value = dict(data["value"])  # type: ignore[call-overload]
    value = Value(**{**value, "consumers": tuple(value["consumers"]), "shape": tuple(value["shape"])})
    return Edge(value, data["producer"], tuple(data["consumers"]))  # type: ignore[arg-type]
