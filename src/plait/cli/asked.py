"""What the flags fix of a plan, checked as far as flags can be by themselves."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

from plait.cluster.suggestions import did_you_mean
from plait.cluster.units import parse_bytes
from plait.cost import check_synchronisation
from plait.errors import PlaitError
from plait.plan import OVERLAPS, Plan
from plait.schedule import SCHEDULES, Schedule, lanes_text, positions_for, read_csv
from plait.schedule.csv_file import positions_of
from plait.search import DEFAULT_BUDGET, Answer, Candidate, Problem, Wishes, evaluate, find_plans, load_pins, parse_pin
from plait.search.bounds import plan_bound
from plait.search.orders import SPLIT

_NAMES = (*SCHEDULES, SPLIT)


def bounded(plan: Plan, problem: Problem) -> Candidate:
    """A plan judged as the planner judges its own. Raises PlaitError where it cannot run."""
    bound = plan_bound(plan, problem.graph, problem.costs)
    return replace(evaluate(plan, problem.graph, problem.costs), bound=bound)


@dataclass(frozen=True)
class Asked:
    """The wishes; the order of a schedule file where one was named; the seconds to search."""

    wishes: Wishes
    order: Schedule | None = None
    budget_seconds: float = DEFAULT_BUDGET

    def plans(self, problem: Problem) -> Answer:
        """The best plans; with an order of the user's own, the best layouts for it."""
        answer = find_plans(
            problem.graph,
            problem.costs,
            problem.cluster,
            batch_size=problem.batch_size,
            wishes=self.wishes,
            batch=problem.batch,
            budget_seconds=self.budget_seconds,
        )
        return answer if self.order is None else _in_order(answer, self.order, problem)


@dataclass(frozen=True)
class Flags:
    """The flags as they were given; None is for the planner to choose."""

    stages: int | None = None
    replicas: str | None = None
    micro_batches: int | None = None
    schedule: str | None = None
    recompute: bool | None = None
    sync: str | None = None
    overlap: str | None = None
    bucket_size: str | None = None
    budget: float | None = None
    pin: list[str] | None = None
    pins: Path | None = None
    tensor: int | None = None

    def asked(self) -> Asked:
        wishes = Wishes(
            replicas=_replicas(self.replicas),
            stages=self.stages,
            micro_batches=self.micro_batches,
            schedule=self.schedule,
            pins=(*(load_pins(self.pins) if self.pins is not None else ()), *map(parse_pin, self.pin or ())),
            recompute=self.recompute,
            sync=_sync(self.sync),
            overlap=_overlap(self.overlap),
            bucket_bytes=None if self.bucket_size is None else parse_bytes(self.bucket_size, name="--bucket-size"),
            tensor=self.tensor,
        )
        budget = DEFAULT_BUDGET if self.budget is None else self.budget
        if self.schedule is not None and self.schedule.lower().endswith(".csv"):
            order = read_csv(self.schedule)
            return Asked(_with_order(wishes, order), order, budget)
        if self.schedule is not None and self.schedule not in _NAMES:
            raise PlaitError(
                f"unknown schedule {self.schedule!r}. {did_you_mean(self.schedule, _NAMES)}Choose one of "
                f"{', '.join(_NAMES)}, or name a CSV file in the notation of PyTorch's pipelining."
            )
        return Asked(wishes, budget_seconds=budget)

    def refuse_beside(self, plan: Path) -> None:
        """Raises PlaitError where a flag would choose what a given plan has chosen."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or value == []:
                continue
            name = field.name.replace("_", "-")
            if isinstance(value, bool):
                flag = f"--{name}" if value else f"--no-{name}"
            else:
                flag = f'--{name} "{value[0]}"' if isinstance(value, list) else f"--{name} {value}"
            raise PlaitError(
                f"{flag} is given beside --plan {plan}, which has chosen that. Leave one of them out, or plan again."
            )


def check_batch(batch: int | None, plan: Plan) -> None:
    """Raises PlaitError where --batch is not what a given plan is for."""
    if batch is not None and batch != plan.batch_size:
        raise PlaitError(
            f"--batch {batch} differs from the plan's batch size {plan.batch_size}. Leave it out, or plan again."
        )


def _in_order(answer: Answer, order: Schedule, problem: Problem) -> Answer:
    """The answer's layouts with that order, simulated anew, best first."""
    lanes, found, why = lanes_text(order), {}, ""
    for candidate in answer.candidates:
        if candidate.plan.positions != positions_of(order.lanes):
            continue
        plan = replace(candidate.plan, schedule=order.name, lanes=lanes)
        if plan.stages not in found:
            try:
                found[plan.stages] = bounded(plan, problem)
            except PlaitError as error:
                why = str(error)
    if not found:
        why = why or "no layout has its stages at the positions of the file"
        raise PlaitError(f"no plan can run in the order of {order.name}.csv: {why}")
    return replace(answer, candidates=tuple(sorted(found.values(), key=lambda c: c.step_seconds)))


def _with_order(wishes: Wishes, order: Schedule) -> Wishes:
    """Wishes that agree with an order of the user's own. Raises PlaitError where those given do not."""
    positions = positions_of(order.lanes)
    micro_batches = 1 + max(action.micro_batch for lane in order.lanes for action in lane)
    for flag, value, there, what in (
        ("--replicas" if wishes.replicas else "--stages", wishes.num_stages, len(positions), "stages"),
        ("--micro-batches", wishes.micro_batches, micro_batches, "micro-batches"),
    ):
        if value is not None and value != there:
            raise PlaitError(
                f"{flag} asks for {value} {what}, but --schedule {order.name}.csv is for {there} (a row per position). "
                f"Leave {flag} out, or give another file."
            )
    return replace(
        wishes,
        stages=None if wishes.replicas else len(positions),
        micro_batches=micro_batches,
        schedule=_stand_in(positions, order),
    )


def _stand_in(positions: tuple[tuple[int, ...], ...], order: Schedule) -> str:
    """A schedule with its stages at the same positions, in whose place the file's order can be put."""
    each = len(positions[0])
    for name in ("1f1b",) if each == 1 else ("interleaved", "zb-v"):
        try:
            if positions_for(name, len(positions), each) == positions:
                return name
        except PlaitError:
            continue  # zb-v has two stages at each position
    held = "; ".join(", ".join(map(str, stages)) for stages in positions)
    raise PlaitError(
        f"--schedule {order.name}.csv has stages {held} in its rows, which is no placement Plait can plan for: row p "
        "of P holds stage p, or stages p, p+P, …, or p and 2P-1-p. Order the rows so."
    )


def _overlap(name: str | None) -> str | None:
    if name is not None and name not in OVERLAPS:
        raise PlaitError(
            f"unknown overlap {name!r}: how far gradient sums pass beside computation is one of {', '.join(OVERLAPS)}."
        )
    return name


def _sync(name: str | None) -> str | None:
    if name in (None, "auto"):
        return None
    check_synchronisation(name)
    return name


def _replicas(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise PlaitError(f"--replicas {text!r} must be one positive number per stage, separated by commas, as in 3,2.")
    return counts
