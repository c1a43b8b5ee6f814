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
    """The program `format_program` wrote; PlaitError names the line where it is no program."""
    header, *lines = text.splitlines() or [""]
    if header.strip() != _HEADER:
        raise PlaitError(f"a program starts with {_HEADER!r}, not {header!r}.")
    read = _Reader()
    for number, line in enumerate(lines, start=2):
        try:
            read.line(line.strip())
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise PlaitError(
                f"line {number} of the program cannot be read: {line.strip()[:60]!r} ({error})."
            ) from error
    return read.program()


class _Reader:
    def __init__(self) -> None:
        self.sizes: tuple[int, ...] = ()
        self.stages: list[StageTable] = []
        self.edges: list[Edge] = []
        self.buckets: list[Bucket] = []
        self.ranks: list[list[Instruction]] = []

    def line(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if word == "micro-batches":
            self.sizes = tuple(json.loads(rest))
        elif word == "stage":
            self.stages.append(_stage(json.loads(rest)))
        elif word == "edge":
            self.edges.append(_edge(json.loads(rest)))
        elif word == "bucket":
            data = json.loads(rest)
            lists = {field: tuple(data[field]) for field in ("parameters", "ranks")}
            self.buckets.append(Bucket(**{**data, **lists, "readers": tuple(map(tuple, data["readers"]))}))
        elif word == "rank":
            self.ranks.append([])
        elif word:
            self.ranks[-1].append(parse_instruction(text))

    def program(self) -> Program:
        ranks = tuple(map(tuple, self.ranks))
        return Program(ranks, tuple(self.stages), tuple(self.edges), tuple(self.buckets), self.sizes)


def _stage(data: dict[str, object]) -> StageTable:
    rows = tuple(tuple((a, b) for a, b in micro_batch) for micro_batch in data["rows"])  # type: ignore[attr-defined]
    return StageTable(**{**data, "ranks": tuple(data["ranks"]), "rows": rows})  # type: ignore[arg-type]


def _edge(data: dict[str, object]) -> Edge:
    value = dict(data["value"])  # type: ignore[call-overload]
    lists = {field: tuple(value.get(field, ())) for field in ("consumers", "shape", "order")}  # JSON has no tuples
    return Edge(Value(**{**value, **lists}), data["producer"], tuple(data["consumers"]))  # type: ignore[arg-type]
