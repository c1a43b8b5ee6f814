"""What an emulated rank is told, as JSON: the program, the seconds of its computations and the size of its tensors."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from plait.cost import Costs
from plait.emulate.calibrate import Probe, choose_probes
from plait.emulate.dilation import Dilation
from plait.emulate.exchanges import Exchange, backward_exchanges, forward_exchanges
from plait.emulate.plain import PlainTask
from plait.errors import PlaitError
from plait.plan import Plan
from plait.program import COMPUTE, Instruction, Op, Program, format_program, parse_program
from plait.simulate.times import Times


class StageSeconds(BaseModel):
    """What a micro-batch of `rows` rows keeps one rank busy, on the bed. `weight` is the rest of a backward.

    After how many seconds of a forward which bucket is used and which value there, and of a backward (or of its rest,
    where there is one) which bucket's gradients are final. Seconds of computing: what a tensor group exchanges comes
    between.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    stage: int
    rows: int
    forward: float
    backward: float
    weight: float
    used: dict[str, float] = {}
    made: dict[str, float] = {}
    final: dict[str, float] = {}
    forward_exchanges: list[Exchange] = []
    backward_exchanges: list[Exchange] = []


class Task(BaseModel):
    """`computations` and `updates` (the optimiser's seconds by bucket) are by rank."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    program_text: str
    sync: str
    hosts: list[str]
    computations: list[list[StageSeconds]]
    updates: list[dict[str, float]]
    payload: float
    num_steps: int
    probes: list[Probe]
    plain: PlainTask | None = None  # what to run in place of the program
    timeout_seconds: float = 120.0

    def program(self) -> Program:
        return parse_program(self.program_text)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json())

    @classmethod
    def read(cls, path: Path) -> "Task":
        try:
            return cls.model_validate_json(path.read_text())
        except (OSError, ValueError) as error:
            raise PlaitError(f"cannot read the emulation's task from {path}: {error}") from error


def insides(instructions: Sequence[Instruction]) -> Iterator[tuple[Instruction, Instruction]]:
    """What happens inside computations, each with its computation."""
    waiting: list[Instruction] = []
    for ins in instructions:
        if ins.inside:
            waiting.append(ins)
        elif waiting:
            yield from ((what, ins) for what in waiting)
            waiting = []


def make_task(plan: Plan, program: Program, costs: Costs, dilation: Dilation, *, num_steps: int) -> Task:
    times = Times(program, plan, costs, exchanging=False)
    halves = {(rank, i.stage) for rank, own in enumerate(program.ranks) for i in own if i.op is Op.W}

    def slower(found: Sequence[Exchange]) -> list[Exchange]:
        return [exchange.model_copy(update={"after": exchange.after * dilation.time}) for exchange in found]

    def seconds(rank: int, stage: int, rows: int) -> StageSeconds:
        forward, backward, weight = (times.compute(rank, op, stage, rows) * dilation.time for op in (Op.F, Op.I, Op.W))
        shared = plan.stages[stage].tensor > 1
        backward_op = Op.I if (rank, stage) in halves else Op.B
        return StageSeconds(
            forward_exchanges=slower(forward_exchanges(times, rank, stage, rows)) if shared else [],
            backward_exchanges=slower(backward_exchanges(times, rank, stage, rows, backward_op)) if shared else [],
            stage=stage,
            rows=rows,
            forward=forward,
            backward=backward,
            weight=weight,
            used=inside(rank, stage, rows, Op.AWAIT),
            made=inside(rank, stage, rows, Op.SEND),
            final=inside(rank, stage, rows, Op.REDUCE),
        )

    def inside(rank: int, stage: int, rows: int, op: Op) -> dict[str, float]:
        found: dict[str, float] = {}
        for what, computation in happenings[rank]:
            if (what.op, computation.stage, computation.rows) == (op, stage, rows):
                found[what.name] = times.inside(rank, what, computation) * dilation.time
        return found

    happenings = [list(insides(own)) for own in program.ranks]

    works = [sorted({(i.stage, i.rows) for i in own if i.op in COMPUTE}) for own in program.ranks]
    return Task(
        program_text=format_program(program),
        sync=plan.sync,
        hosts=[plan.cluster.devices[device].host for device in plan.devices],
        computations=[[seconds(rank, *work) for work in own] for rank, own in enumerate(works)],
        updates=[
            {b.name: times.step(rank, b.name) * dilation.time for b in program.buckets if rank in b.ranks}
            for rank in range(len(program.ranks))
        ],
        payload=dilation.payload,
        num_steps=num_steps,
        probes=choose_probes(program, plan, dilation),
    )
