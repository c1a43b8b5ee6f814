"""The noun `Planner`: from a problem to ranked plans, inside a time budget.

1. Seeds: the dynamic program (`prm`) over device orders, grains and numbers of micro-batches.
2. The most promising, by `score`, are improved by local search.
3. For the best of these, orders of micro-batches are made (`orders`), and plans are simulated, the most promising
   first: what the simulator says is what counts.

Every phase has its share of the budget and stops when that is used up; the first phase always finishes one pass, so
that there is an answer whatever the budget.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plait.cluster import Cluster
from plait.cost import Costs, sync_seconds
from plait.errors import PlaitError
from plait.graph import Graph
from plait.plan import Plan
from plait.search.baselines import Option
from plait.search.bounds import Bound, cluster_bound, plan_bound
from plait.search.classical import classical_options
from plait.search.contradictions import check_stage_counts, limits_of
from plait.search.groups import Groups
from plait.search.judge import Candidate, DoesNotFit, Trial, evaluate, try_out
from plait.search.layout import Layout
from plait.search.loads import fine_loads, whole_chain
from plait.search.local_search import Freedom, improved
from plait.search.orders import FUSED, SPLIT, orders, promise
from plait.search.problem import Problem
from plait.search.score import Scorer
from plait.search.seeds import coarse_for, least_memory, rough_for, seeds
from plait.search.split import check_known
from plait.search.sum_order import with_sum_order
from plait.search.turns import Entry, Judged, Pace, in_turn, least_reserve
from plait.search.virtual import virtual_layouts
from plait.search.wishes import Wishes, check_wishes

DEFAULT_BUDGET = 5.0
_SEEDING, _CLASSICAL, _IMPROVING, _JUDGING = 0.25, 0.4, 0.55, 0.9  # of the budget, by when these phases end
_ANSWERING = 1.5  # times what it took to judge a plan, for all of it again and its check and bound
_OF_A_BUCKET = 0.35  # of what a micro-batch takes on a replica, to judge
_RESERVED = 0.7  # of the budget, at most, for judging a plan and answering with it
_FITTINGS = 3  # times the orders of a layout are made again to hold less
_ANSWERED = 8  # plans of an answer
_WAYS_TO_SUM, _BY_A_SWITCH = ("hierarchical", "ring"), ("passing", "in-network")
_SPLITTING = ("zb-h1", "zb-h2", "zb-v")
MANY_STAGES = ("interleaved", "zb-v")
_VIRTUAL = 3  # layouts of which those with several stages at a position are made
_AS_PLANNED = 8  # classical planners' layouts that are judged with their own orders too
_AS_PLANNED_SHARE = 0.2  # of the time, at most, for one of them
_IMPROVED, _CLASSICAL_IMPROVED = 12, 6  # seeds that local search starts from, and classical planners' layouts


@dataclass(frozen=True)
class Answer:
    """Plans from best to worst, why others were left out, and a time no plan on this cluster can beat."""

    candidates: tuple[Candidate, ...]
    rejected: tuple[tuple[str, str], ...]
    bound: Bound
    planning_seconds: float

    @property
    def bound_seconds(self) -> float:
        return self.bound.seconds

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


def find_plans(
    graph: Graph,
    costs: Costs,
    cluster: Cluster,
    *,
    batch_size: int,
    wishes: Wishes | None = None,
    batch: Any = None,
    budget_seconds: float = DEFAULT_BUDGET,
) -> Answer:
    """The best plans found. Raises PlaitError where none can run, with what is missing."""
    start = time.perf_counter()
    wishes = wishes or Wishes()
    check_wishes(wishes, cluster, batch_size)
    problem = Problem(graph, costs, cluster, batch_size, batch, wishes.micro_batches, wishes.overlap or "full")
    check_known(wishes, problem)
    # Where all stages are of single devices, bounds are higher.
    shared = bool(whole_chain(graph, costs)) and wishes.tensor != 1
    bound = cluster_bound(graph, costs, cluster, batch_size, overlap=problem.overlap, shared_layers=shared)
    search = _Search(problem, wishes, start, budget_seconds)
    found = search.run()
    return Answer(
        candidates=tuple(found),
        rejected=tuple(search.rejected),
        bound=bound,
        planning_seconds=time.perf_counter() - start,
    )


class _Search:
    def __init__(self, problem: Problem, wishes: Wishes, start: float, budget_seconds: float) -> None:
        self.problem, self.wishes, self.start, self.budget = problem, wishes, start, budget_seconds
        self.limits = limits_of(wishes.pins, problem.graph)
        if wishes.pins:
            counts = {wishes.num_stages} if wishes.num_stages else range(1, len(problem.cluster.devices) + 1)
            check_stage_counts(wishes.pins, problem.graph, set(counts))
        self.loads = fine_loads(problem.graph, problem.costs)
        self.rough = rough_for(self.loads, self.limits)
        self.coarse = coarse_for(problem, self.loads, self.limits)
        self.groups = Groups(problem.cluster, problem.costs, wishes.sync or _usual_sum(problem), wishes.bucket_bytes)
        self.scorer = Scorer(problem, self.loads, self.groups, split=wishes.schedule in (None, SPLIT, *_SPLITTING))
        degrees = (1, *self.loads.tensor) if wishes.tensor is None else ()
        self.may = Freedom(
            self.limits,
            devices=wishes.replicas is None,
            recompute=wishes.recompute is None,
            micro_batches=wishes.micro_batches is None,
            free_devices=tuple(range(len(problem.cluster.devices))) if len(problem.cluster.devices) <= 16 else (),
            regrouped=lambda group: self.groups.regrouped(group, degrees),
        )
        self.reserved = 0.0
        self.classical: dict[Layout, list[Option]] = {}
        self.rejected: list[tuple[str, str]] = []
        self.fastest: tuple[Plan, Trial] | None = None  # so far, of those that fit
        self.misjudged: dict[int, int] = {}  # bytes that layouts turned out to lack, by micro-batches

    def run(self) -> list[Candidate]:
        layouts = self._with_virtual(self._improved(self._seeds()))
        found = sorted(self._judged(layouts), key=lambda judged: (judged.seconds, judged.plan.num_ranks))
        if not found:
            raise PlaitError(self._nothing_fits())
        best, *others = _distinct(found)
        answer = [self._candidate(best.plan)]
        for judged in others:
            if len(answer) == _ANSWERED:
                break
            if time.perf_counter() + _ANSWERING * judged.judging_seconds > self.start + self.budget:
                continue
            try:
                answer.append(self._candidate(judged.plan))
            except PlaitError as error:  # of those slower than the best, memory has not been looked at
                self.rejected.append((name_of(judged.plan), str(error)))
        return answer

    def _candidate(self, plan: Plan) -> Candidate:
        graph, costs = self.problem.graph, self.problem.costs
        trial = self.fastest[1] if self.fastest and self.fastest[0] is plan else None
        return replace(evaluate(plan, graph, costs, trial), bound=plan_bound(plan, graph, costs))

    def _until(self, share: float) -> float:
        """The end of a phase: at its share of the budget, but in time to judge a plan and answer with it."""
        return self.start + min(share * self.budget, self.budget - self.reserved)

    def _seeds(self) -> list[Layout]:
        scored: dict[Layout, float] = {}
        chains = self.rough, self.coarse
        found = seeds(self.problem, *chains, self.groups, self.wishes, self.limits, self._until(_SEEDING))
        for layout in found:
            scored[layout] = self.scorer(layout)
        ranked = sorted(scored, key=scored.__getitem__)
        if ranked:
            self.reserved = min(least_reserve(self._effort(ranked[0])), _RESERVED * self.budget)
        if self.wishes == Wishes(micro_batches=self.wishes.micro_batches, overlap=self.wishes.overlap):
            for layout, option in classical_options(self.problem, self._until(_CLASSICAL)):
                self.classical.setdefault(layout, []).append(option)
        return ranked

    def _improved(self, layouts: Sequence[Layout]) -> list[Layout]:
        """Local optima, best first, and behind them what they were found from."""
        scored: dict[Layout, float] = {}
        theirs = sorted(self.classical, key=self.scorer)
        classical = _varied(theirs, _CLASSICAL_IMPROVED)
        chosen = list(dict.fromkeys([*_varied(layouts, _IMPROVED), *classical]))
        for number, layout in enumerate(chosen):
            begin = time.perf_counter()
            share = (self._until(_IMPROVING) - begin) / (len(chosen) - number)
            better = layout
            if not layout.has_shared_positions:  # moves know of one stage at a position
                better = improved(layout, self.scorer.downhill, self.may, begin + share)
            scored[better] = self.scorer(better)
        best = sorted(scored, key=scored.__getitem__)
        return list(dict.fromkeys([*best, *chosen, *theirs]))

    def _with_virtual(self, layouts: list[Layout]) -> list[Layout]:
        """Beside the layouts, those with several stages at their positions."""
        schedule = self.wishes.schedule
        if schedule in MANY_STAGES:
            return [virtual for layout in layouts for virtual in self._virtual(layout, schedule)]
        if schedule not in (None, SPLIT, FUSED) or self.wishes.num_stages is not None or self.limits.held:
            return layouts
        virtual = [found for layout in layouts[:_VIRTUAL] for found in self._virtual(layout, None)]
        return [*layouts, *virtual]

    def _virtual(self, layout: Layout, schedule: str | None) -> list[Layout]:
        return virtual_layouts(layout, self.problem, self.groups, self.coarse, self.limits, schedule)

    def _judged(self, layouts: Sequence[Layout]) -> Iterator[Judged]:
        """Plans simulated, those that promise most first.

        What a layout promises is its score until its orders are made, which are slower and say more. A classical
        planner's plan goes before all others, so that there is something to answer with.
        """
        pace = Pace(self.start + _JUDGING * self.budget, self.start + self.budget)
        entries: list[Entry] = []
        quick = [layout for layout in self.classical if pace.share(self._effort(layout)) <= _AS_PLANNED_SHARE]
        theirs = sorted(quick, key=self._quick_seconds)[:_AS_PLANNED]
        for number, layout in enumerate(theirs, start=-_AS_PLANNED):
            effort, seconds = self._effort(layout), self._quick_seconds(layout) if entries else 0.0
            entries.append(Entry(seconds, number, effort, self._as_planned(layout)))
        for number, layout in enumerate(self._unlike(layouts)):
            effort = self._effort(layout)
            entries.append(Entry(self.scorer(layout), number, effort, self._tries(layout, effort, pace)))
        return in_turn(entries, pace)

    def _as_planned(self, layout: Layout) -> Iterator[Judged | float]:
        """Classical planners' own plans of a layout, not only with orders that are made for it."""
        for option in self.classical[layout]:
            yield max(option.seconds, self.scorer(layout)) if self.fastest else 0.0  # nothing to answer with yet
            try:
                start = time.perf_counter()
                plan = option.plan()
                yield Judged(self._step_time(plan), plan, time.perf_counter() - start)
            except PlaitError as error:
                self.rejected.append((name_of(option.plan()), str(error)))

    def _quick_seconds(self, layout: Layout) -> float:
        """Of a classical planner's layout, by its own formula and ours, whichever is more."""
        return max(self.scorer(layout), min(option.seconds for option in self.classical[layout]))

    def _effort(self, layout: Layout) -> float:
        """What the time to judge its plans grows with: micro-batches and gradient sums of replicas."""
        times = self.scorer.times(layout)
        sums = sum(found.buckets * len(found.group) for found in times.sums) if times is not None else 0
        return layout.micro_batches * sum(map(len, layout.groups)) + _OF_A_BUCKET * sums

    def _unlike(self, layouts: Sequence[Layout]) -> list[Layout]:
        """Those that may run; of several that differ in devices alone and take the same times, the first."""
        unlike: dict[object, Layout] = {}
        for layout in layouts:
            times = self.scorer.times(layout)
            if times is not None:
                stages = (tuple(times.stages), tuple(times.over), tuple(times.under), times.busiest)
                unlike.setdefault(
                    (layout.boundaries, layout.micro_batches, tuple(map(tuple, layout.positions)), stages), layout
                )
        return list(unlike.values())

    def _tries(self, layout: Layout, effort: float, pace: Pace) -> Iterator[Judged | float]:
        """Orders of one layout, the most promising first; after one that does not fit, orders that hold less.

        Before each of them the seconds it promises, which is as far off as that of the last one was. Layouts with
        micro-batches of one size misjudge their memory alike.
        """
        reserve = [self.misjudged.get(layout.micro_batches, 0)] * len(layout.positions)
        tried: set[tuple[str, tuple[str, ...]]] = set()
        yield promise(layout, self.scorer, self.wishes.schedule, reserve)
        off = 1.0  # by which the simulator's seconds are more
        for _ in range(_FITTINGS):
            missing: dict[int, int] = {}
            for seconds, plan in orders(layout, self.problem, self.groups, self.scorer, self.wishes.schedule, reserve):
                if (plan.schedule, plan.lanes) in tried:
                    continue
                tried.add((plan.schedule, plan.lanes))
                yield seconds * off
                try:
                    judged = self._judge(plan, effort, pace)
                    off = judged.seconds / seconds
                    yield judged
                except PlaitError as error:
                    self.rejected.append((name_of(plan), str(error)))
                    missing = error.missing_bytes if isinstance(error, DoesNotFit) else {}
                    if missing:
                        break
            if not missing:
                return
            for place, stages in enumerate(layout.positions):
                reserve[place] += max(missing.get(rank, 0) for rank in plan.stage_ranks(stages[0]))
            self.misjudged[layout.micro_batches] = max(reserve)

    def _judge(self, plan: Plan, effort: float, pace: Pace) -> Judged:
        """Raises PlaitError where it cannot run."""
        start = time.perf_counter()
        plan = self._ready(plan)
        found = self._step_time(plan)
        return self._summed_otherwise(Judged(found, plan, time.perf_counter() - start), effort, pace)

    def _ready(self, plan: Plan) -> Plan:
        return with_sum_order(plan, self.problem.graph, self.problem.costs)

    def _summed_otherwise(self, judged: Judged, effort: float, pace: Pace) -> Judged:
        """The plan, where it is the fastest so far with the way to sum gradients that suits it best, if the user left
        that open and there is time."""
        fastest = self.fastest is not None and self.fastest[0] is judged.plan
        if not fastest or self.wishes.sync is not None or judged.plan.most_replicas == 1:
            return judged
        for sync in _ways_to_sum(self.problem):
            if sync != judged.plan.sync and pace.allows(effort, judged):
                start = time.perf_counter()
                plan = self._ready(replace(judged.plan, sync=sync))
                found = self._step_time(plan)
                if found < judged.seconds:
                    judged = Judged(found, plan, time.perf_counter() - start)
        return judged

    def _step_time(self, plan: Plan) -> float:
        """Of the fastest so far it is sure that they fit."""
        fastest = self.fastest[1].seconds if self.fastest else math.inf
        found = try_out(plan, self.problem.graph, self.problem.costs, matters_below=fastest)
        if found.seconds < fastest:
            self.fastest = plan, found
        return found.seconds

    def _nothing_fits(self) -> str:
        """Why even the plan that takes the least memory cannot run."""
        smallest = least_memory(self.problem, self.wishes, self.limits)
        for _, plan in orders(smallest, self.problem, self.groups, self.scorer, self.wishes.schedule or "1f1b"):
            try:
                evaluate(plan, self.problem.graph, self.problem.costs)
            except PlaitError as error:
                return str(error)
        return (
            f"no plan was found for batch size {self.problem.batch_size} on {len(self.problem.cluster.devices)} "
            f"devices with {self.wishes}. Loosen a wish, or give the search more time with --budget."
        )


def _ways_to_sum(problem: Problem) -> tuple[str, ...]:
    return _WAYS_TO_SUM + (_BY_A_SWITCH if problem.cluster.aggregators else ())


def _usual_sum(problem: Problem) -> str:
    """What sums all gradients over all devices fastest; others are tried on the best plans."""
    trained = sum(parameter.num_bytes for parameter in problem.graph.parameters if parameter.trainable)
    devices = range(len(problem.cluster.devices))
    return min(_ways_to_sum(problem), key=lambda sync: sync_seconds(sync, trained, devices, problem.cluster)[0])


def _varied(layouts: Sequence[Layout], most: int) -> list[Layout]:
    """The first ones, at most two of the same number of stages and micro-batches."""
    seen: dict[tuple[int, int], int] = {}
    chosen = []
    for layout in layouts:
        key = layout.num_stages, layout.micro_batches
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= 2:
            chosen.append(layout)
        if len(chosen) == most:
            break
    return chosen


def _distinct(found: Sequence[Judged]) -> list[Judged]:
    """One of each layout and schedule: others differ in nothing a table shows."""
    seen: dict[tuple[object, ...], Judged] = {}
    for judged in found:
        seen.setdefault((judged.plan.stages, judged.plan.micro_batches, judged.plan.schedule), judged)
    return list(seen.values())


def name_of(plan: Plan) -> str:
    return f"{plan.layout()} m{plan.micro_batches} {plan.schedule}"
