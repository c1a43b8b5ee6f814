"""The static check: what is proved of a program before anything runs.

1. `_computations`: every micro-batch goes forward and backward once through every stage, its rows exactly
   covered by the stage's ranks.
2. `_messages`: every RECV has its SEND, with the same rows, in the same order; every value a forward
   needs, and every gradient a backward needs, arrives in full.
3. `_order`: on each rank, nothing is used before it is made or posted.
4. `_frees`: everything sent is waited for and forgotten, once.
5. `_synchronisation`: every parameter's bucket is summed by all its ranks and stepped once, in that order.
6. `_same_collectives`: ranks that sum together start their sums in the same order.
7. `_no_deadlock`: run with all waits and no times, every rank reaches its end.

Memory is checked by `memory.check_memory`, which needs costs. A violation names rank and instruction and
prints the surrounding grid of ranks with the offending cell marked.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from plait.errors import PlaitError
from plait.program.instructions import Instruction, Op
from plait.program.messages import transfers
from plait.program.program import Program

_REDUCES = (Op.REDUCE, Op.REDUCE_TIED)


class ProgramError(PlaitError):
    """The program would hang, or would not compute the gradients of one device."""

    def __init__(self, program: Program, rank: int, index: int, why: str) -> None:
        self.rank, self.index = rank, index
        super().__init__(f"program error on rank {rank}, instruction {index}: {why}\n{grid(program, rank, index)}")


def grid(program: Program, rank: int, index: int, *, around: int = 3, width: int = 34) -> str:
    """Instructions of all ranks (at most six) near one cell, which is marked with `>>`."""
    shown = sorted({rank, *range(len(program.ranks))}, key=lambda r: abs(r - rank))[:6]
    shown.sort()
    first = max(0, index - around)
    lines = ["      " + "".join(f"rank {r}".ljust(width) for r in shown)]
    for row in range(first, index + around + 1):
        cells = []
        for r in shown:
            text = str(program.ranks[r][row]) if row < len(program.ranks[r]) else ""
            marked = r == rank and row == index
            cells.append((f">>{text}<<" if marked else text)[: width - 2].ljust(width))
        lines.append(f"{row:5d} " + "".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def check_program(program: Program) -> None:
    """Raises ProgramError at the first violation; returns if the program is proved right."""
    for rule in (
        _computations,
        _messages,
        _order,
        _frees,
        _synchronisation,
        _same_collectives,
        _no_deadlock,
    ):
        for rank, index, why in rule(program):
            raise ProgramError(program, rank, index, why)


Violation = tuple[int, int, str]


def _computations(program: Program) -> Iterator[Violation]:
    seen: Counter[tuple[int, str, int, int]] = Counter()
    for rank, instructions in enumerate(program.ranks):
        for index, ins in enumerate(instructions):
            if ins.op not in (Op.F, Op.B, Op.I, Op.W):
                continue
            key = (rank, str(ins.op), ins.stage, ins.micro_batch)
            seen[key] += 1
            if not 0 <= ins.stage < len(program.stages) or rank not in program.stages[ins.stage].ranks:
                yield rank, index, f"{ins} is not this rank's: stage {ins.stage} runs elsewhere"
                return
            stage = program.stages[ins.stage]
            if not 0 <= ins.micro_batch < len(stage.rows):
                yield rank, index, f"there is no micro-batch {ins.micro_batch}"
                return
            expected = stage.rows[ins.micro_batch][stage.ranks.index(rank)]
            if (ins.first_row, ins.last_row) != expected:
                yield rank, index, f"{ins} should be of rows {expected[0]}:{expected[1]}"
            if seen[key] > 1:
                yield rank, index, f"{ins} runs twice"
    for number, stage in enumerate(program.stages):
        for micro_batch, spans in enumerate(stage.rows):
            edges = [0, *(last for _, last in spans)]
            if [first for first, _ in spans] != edges[:-1] or edges[-1] != program.micro_batch_rows[micro_batch]:
                yield (
                    stage.ranks[0],
                    0,
                    f"the rows of micro-batch {micro_batch} are not covered by stage {number}",
                )
            for rank, (first, last) in zip(stage.ranks, spans, strict=True):
                fused = seen[rank, "B", number, micro_batch]
                halves = seen[rank, "I", number, micro_batch], seen[rank, "W", number, micro_batch]
                if last > first and seen[rank, "F", number, micro_batch] != 1:
                    yield rank, 0, f"F s{number} m{micro_batch} is missing"
                if last > first and (fused, halves) not in ((1, (0, 0)), (0, (1, 1))):
                    yield rank, 0, f"B s{number} m{micro_batch} is missing"


def _messages(program: Program) -> Iterator[Violation]:
    sent, received = _by_channel(program, Op.SEND), _by_channel(program, Op.RECV)
    for channel in sorted(set(sent) | set(received)):
        source, sink = channel
        for position in range(max(len(sent[channel]), len(received[channel]))):
            if position >= len(sent[channel]):
                index, ins = received[channel][position]
                yield sink, index, f"no SEND on rank {source} matches {ins}"
            elif position >= len(received[channel]):
                index, ins = sent[channel][position]
                yield source, index, f"no RECV on rank {sink} matches {ins}"
            else:
                (_, out), (index, into) = sent[channel][position], received[channel][position]
                if _content(out) != _content(into):
                    yield sink, index, f"{into} does not match what rank {source} sends at this point: {out}"
    yield from _everything_arrives(program)


def _by_channel(program: Program, op: Op) -> defaultdict[tuple[int, int], list[tuple[int, Instruction]]]:
    channels: defaultdict[tuple[int, int], list[tuple[int, Instruction]]] = defaultdict(list)
    for rank, instructions in enumerate(program.ranks):
        for index, ins in enumerate(instructions):
            if ins.op is op:
                channels[(rank, ins.peer) if op is Op.SEND else (ins.peer, rank)].append((index, ins))
    return channels


def _content(ins: Instruction) -> tuple[object, ...]:
    return ins.name, ins.gradient, ins.micro_batch, ins.first_row, ins.last_row


def _everything_arrives(program: Program) -> Iterator[Violation]:
    posted = {
        (rank, ins.stage, *_content(ins), ins.peer)
        for rank, instructions in enumerate(program.ranks)
        for ins in instructions
        if ins.op is Op.RECV
    }
    total = 0
    for edge in program.edges:
        making = program.stages[edge.producer]
        for consumer in edge.consumers:
            using = program.stages[consumer]
            for m in range(len(program.micro_batch_rows)):
                for i, j, (first, last) in transfers(edge.value, making.rows[m], using.rows[m]):
                    source, sink = making.ranks[i], using.ranks[j]
                    name = edge.value.name
                    needed = [(sink, consumer, name, False, m, first, last, source)]
                    if edge.value.requires_grad:
                        needed.append((source, edge.producer, name, True, m, first, last, sink))
                    total += len(needed)
                    for item in needed:
                        if item not in posted:
                            what = "the gradient of " if item[3] else ""
                            yield (
                                item[0],
                                0,
                                f"{what}{name} rows {first}:{last} of micro-batch {m} never arrives",
                            )
    if total != len(posted):
        yield 0, 0, f"{len(posted) - total} messages carry values nobody needs"


def _order(program: Program) -> Iterator[Violation]:
    """On one rank: F before its sends and its B, B before its gradients' sends, receives before their use."""
    for rank, instructions in enumerate(program.ranks):
        done: set[tuple[str, int, int]] = set()
        latest_forward: dict[int, int] = {}
        last_compute: dict[int | None, int] = {}  # by stage, and None: of all
        for index, ins in enumerate(instructions):
            if ins.op in (Op.F, Op.B, Op.I, Op.W):
                last_compute[ins.stage] = last_compute[None] = index
        for index, ins in enumerate(instructions):
            key = (ins.stage, ins.micro_batch)
            if ins.op is Op.F and latest_forward.get(ins.stage, -1) > ins.micro_batch:
                # One device updates its buffers (BatchNorm statistics) in the order of the micro-batches.
                yield rank, index, f"{ins} comes after a later micro-batch's forward"
            if ins.op in (Op.B, Op.I) and ("F", *key) not in done:
                yield rank, index, f"{ins} comes before its forward"
            if ins.op is Op.W and ("I", *key) not in done:
                yield rank, index, f"{ins} comes before its input-gradient half"
            if ins.op is Op.SEND:
                makers = ("B", "I") if ins.gradient else ("F",)
                if not any((maker, *key) in done for maker in makers):
                    yield rank, index, f"{ins} comes before what it sends is made"
            if ins.op is Op.RECV:
                users = ("B", "I") if ins.gradient else ("F",)
                if any((user, *key) in done for user in users):
                    yield rank, index, f"{ins} is posted after the computation that needs it"
            if ins.op is Op.FREE and (("B", *key) not in done and ("W", *key) not in done):
                yield rank, index, f"{ins} comes before the backward is done"
            if ins.op in (*_REDUCES, Op.STEP, Op.LOSS, Op.CLIP):
                late = last_compute.get(_stage_of(program, ins), -1)
                if late > index:
                    yield rank, index, f"{ins} comes before {instructions[late]}, which still adds to it"
            if ins.op in (Op.F, Op.B, Op.I, Op.W):
                done.add((str(ins.op), *key))
                if ins.op is Op.F:
                    latest_forward[ins.stage] = ins.micro_batch


def _frees(program: Program) -> Iterator[Violation]:
    """A send that is never waited for may never leave, and its memory is never given back."""
    for rank, instructions in enumerate(program.ranks):
        unfreed: dict[tuple[int, int, bool], int] = {}
        for index, ins in enumerate(instructions):
            key = (ins.stage, ins.micro_batch, ins.gradient)
            if ins.op is Op.SEND:
                unfreed[key] = index
            elif ins.op is Op.FREE and unfreed.pop(key, None) is None:
                yield rank, index, f"{ins} frees nothing that was sent"
        for index in unfreed.values():
            yield rank, index, f"{instructions[index]} is never freed"


def _same_collectives(program: Program) -> Iterator[Violation]:
    """Sums within one group match by order alone, so all its members must start them in one order."""
    orders: dict[tuple[int, ...], tuple[int, list[str]]] = {}
    everybody = tuple(range(len(program.ranks)))
    for rank, instructions in enumerate(program.ranks):
        own: defaultdict[tuple[int, ...], list[tuple[int, str]]] = defaultdict(list)
        for index, ins in enumerate(instructions):
            if ins.op in _REDUCES:
                own[program.bucket_by_name[ins.name].ranks].append((index, ins.name))
            elif ins.op in (Op.LOSS, Op.CLIP):
                own[everybody].append((index, str(ins.op)))
        for group, started in own.items():
            names = [name for _, name in started]
            other, expected = orders.setdefault(group, (rank, names))
            for (index, name), wanted in zip(started, expected, strict=False):
                if name != wanted:
                    yield rank, index, f"starts {name} where rank {other} of the same group starts {wanted}"
            if len(names) != len(expected):
                yield (
                    rank,
                    started[-1][0],
                    f"joins {len(names)} sums of a group in which rank {other} joins {len(expected)}",
                )


def _stage_of(program: Program, ins: Instruction) -> int | None:
    """The stage whose backwards fill a bucket; None where all of the rank's do."""
    bucket = program.bucket_by_name.get(ins.name)
    if ins.op not in _REDUCES or bucket is None or bucket.tied:
        return None
    return int(bucket.name[1:].split(".")[0])


def _synchronisation(program: Program) -> Iterator[Violation]:
    for rank, instructions in enumerate(program.ranks):
        places: dict[tuple[str, str], int] = {}
        for index, ins in enumerate(instructions):
            if ins.op in (*_REDUCES, Op.AWAIT, Op.STEP):
                kind = "REDUCE" if ins.op in _REDUCES else str(ins.op)
                bucket = program.bucket_by_name.get(ins.name)
                if bucket is None or rank not in bucket.ranks:
                    yield rank, index, f"bucket {ins.name} does not belong to rank {rank}"
                if (kind, ins.name) in places:
                    yield rank, index, f"{ins} happens twice"
                places[kind, ins.name] = index
            elif ins.op in (Op.CLIP, Op.LOSS):
                if (str(ins.op), "") in places:
                    yield rank, index, f"{ins} happens twice"
                places[str(ins.op), ""] = index
        if ("LOSS", "") not in places:
            yield rank, len(instructions) - 1, "LOSS is missing: this rank would not know the loss"
        for bucket in program.buckets:
            if rank not in bucket.ranks:
                continue
            chain = ["REDUCE", "AWAIT", "STEP"] if len(bucket.ranks) > 1 else ["STEP"]
            missing = [kind for kind in chain if (kind, bucket.name) not in places]
            if missing:
                yield rank, len(instructions) - 1, f"{missing[0]} {bucket.name} is missing"
                continue
            found = [places[kind, bucket.name] for kind in chain]
            if found != sorted(found):
                yield (
                    rank,
                    found[-1],
                    f"bucket {bucket.name} must be reduced, awaited and stepped in that order",
                )
            clip = places.get(("CLIP", ""))
            if clip is not None and not (found[-2] if len(found) > 1 else -1) < clip < found[-1]:
                yield (
                    rank,
                    clip,
                    f"CLIP must come after every gradient is summed and before STEP {bucket.name}",
                )
    clipping = [any(ins.op is Op.CLIP for ins in instructions) for instructions in program.ranks]
    if any(clipping) and not all(clipping):
        yield clipping.index(False), 0, "CLIP is missing: the norm needs every rank"


def _no_deadlock(program: Program) -> Iterator[Violation]:
    """Runs the program with its waits and without times: a rank that cannot go on is in a cycle of waits."""
    machine = _WaitMachine(program)
    progress = True
    while progress:
        progress = False
        for rank in range(len(program.ranks)):
            progress |= machine.advance(rank)
    for rank, instructions in enumerate(program.ranks):
        if (index := machine.position[rank]) < len(instructions):
            yield rank, index, f"deadlock: {instructions[index]} waits for what can never happen"


class _WaitMachine:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.position = [0] * len(program.ranks)
        self.sent: Counter[tuple[int, int]] = Counter()
        self.posted: Counter[tuple[int, int]] = Counter()
        self.joined: defaultdict[object, set[int]] = defaultdict(set)
        self.needs: defaultdict[tuple[int, int, int, bool], list[tuple[tuple[int, int], int]]] = defaultdict(list)
        self.sends: defaultdict[tuple[int, int, int, bool], list[tuple[tuple[int, int], int]]] = defaultdict(list)

    def advance(self, rank: int) -> bool:
        instructions = self.program.ranks[rank]
        start = self.position[rank]
        while self.position[rank] < len(instructions) and self._step(rank, instructions[self.position[rank]]):
            self.position[rank] += 1
        return self.position[rank] > start

    def _step(self, rank: int, ins: Instruction) -> bool:
        """Does `ins` if it need not wait; tells whether it was done."""
        if ins.op is Op.SEND:
            channel = (rank, ins.peer)
            self.sends[rank, ins.stage, ins.micro_batch, ins.gradient].append((channel, self.sent[channel]))
            self.sent[channel] += 1
        elif ins.op is Op.RECV:
            channel = (ins.peer, rank)
            self.needs[rank, ins.stage, ins.micro_batch, ins.gradient].append((channel, self.posted[channel]))
            self.posted[channel] += 1
        elif ins.op in (Op.F, Op.B, Op.I):
            needs = self.needs[rank, ins.stage, ins.micro_batch, ins.op is not Op.F]
            if any(self.sent[channel] <= number for channel, number in needs):
                return False
            stage = self.program.stages[ins.stage]
            if stage.coupled:
                working = {
                    r for r, (first, last) in zip(stage.ranks, stage.rows[ins.micro_batch], strict=True) if last > first
                }
                return self._meet(rank, (ins.op, ins.stage, ins.micro_batch), working)
        elif ins.op is Op.FREE:
            sends = self.sends[rank, ins.stage, ins.micro_batch, ins.gradient]
            return all(self.posted[channel] > number for channel, number in sends)
        elif ins.op in _REDUCES:
            self.joined[ins.name].add(rank)
        elif ins.op is Op.AWAIT:
            return self.joined[ins.name] >= set(self.program.bucket_by_name[ins.name].ranks)
        elif ins.op in (Op.LOSS, Op.CLIP):
            return self._meet(rank, ins.op, set(range(len(self.program.ranks))))
        return True

    def _meet(self, rank: int, where: object, ranks: set[int]) -> bool:
        """All of `ranks` must be here before any goes on."""
        self.joined[where].add(rank)
        return self.joined[where] >= ranks
