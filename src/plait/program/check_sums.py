"""What the static check proves of sums over ranks: gradients, the loss and the norm."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from plait.program.instructions import COMPUTE, Instruction, Op
from plait.program.listing import Listing
from plait.program.program import Bucket, Program

REDUCES = (Op.REDUCE, Op.REDUCE_TIED)
# What may happen inside which computations.
_WITHIN = dict.fromkeys(REDUCES, (Op.B, Op.I, Op.W)) | dict.fromkeys((Op.AWAIT, Op.STEP, Op.SEND), (Op.F,))
Violation = tuple[int, int, str]
Span = tuple[int, int]


def insides(program: Program, ranks: list[Listing]) -> Iterator[Violation]:
    """What is to happen inside a computation stands right before it and names it."""
    for listing in ranks:
        instructions = program.ranks[listing.rank]
        for index, ins in listing.inside:
            after = next((ins for ins in islice(instructions, index + 1, None) if not ins.inside), None)
            if ins.op not in _WITHIN or ins.gradient:
                yield listing.rank, index, f"{ins}: nothing of that kind happens inside a computation"
            elif after is None or after.op not in COMPUTE:
                yield listing.rank, index, f"{ins} does not stand before a computation"
            elif ins[1:3] != after[1:3] or after.op not in _WITHIN[ins.op]:
                yield listing.rank, index, f"{ins} cannot happen inside {after}"


def synchronisation(program: Program, ranks: list[Listing]) -> Iterator[Violation]:
    """Every bucket is summed by all its ranks and stepped once, every rank knows the loss, and the norm if any does."""
    clips = any(ins.op is Op.CLIP for listing in ranks for _, ins in listing.collectives)
    for listing in ranks:
        rank = listing.rank
        places: dict[tuple[Op, str], int] = {}
        end = max(len(program.ranks[rank]) - 1, 0)
        for index, ins in listing.collectives:
            kind = Op.REDUCE if ins.op is Op.REDUCE_TIED else ins.op
            if ins.name and (wrong := _wrong_bucket(program, rank, ins)):
                yield rank, index, wrong
            if (kind, ins.name) in places:
                yield rank, index, f"{ins} happens twice"
            places[kind, ins.name] = index
        if (Op.LOSS, "") not in places:
            yield rank, end, "LOSS is missing: this rank would not know the loss"
        if clips and (Op.CLIP, "") not in places:
            yield rank, end, "CLIP is missing: the norm needs every rank"
        spans = _spans(listing)
        for bucket in program.buckets:
            if rank in bucket.ranks:
                readers = [span for stage, span in spans.items() if _reads(program, stage, bucket)]
                yield from _summed_and_stepped(program, listing, bucket, places, readers)
        for op in (Op.LOSS, Op.CLIP):
            late = listing.computations[-1][0] if listing.computations else -1
            if (op, "") in places and places[op, ""] < late:
                yield rank, places[op, ""], f"{op} comes before {program.ranks[rank][late]}"


def _wrong_bucket(program: Program, rank: int, ins: Instruction) -> str | None:
    bucket = program.bucket_by_name.get(ins.name)
    if bucket is None or rank not in bucket.ranks:
        return f"bucket {ins.name} does not belong to rank {rank}"
    if ins.op is not Op.STEP and len(bucket.ranks) == 1:
        return f"{ins}: the bucket is on one rank, so there is nothing to sum"
    if ins.op in REDUCES and (ins.op is Op.REDUCE_TIED) != bucket.tied:
        return f"{ins}: the bucket {'holds' if bucket.tied else 'does not hold'} a tied parameter"
    return None


def _spans(listing: Listing) -> dict[int, Span]:
    """The first and the last computation of every stage."""
    found: dict[int, Span] = {}
    for index, ins in listing.computations:
        found[ins.stage] = found.get(ins.stage, (index, index))[0], index
    return found


def _reads(program: Program, stage: int, bucket: Bucket) -> bool:
    table = program.stages[stage]
    return any(table.start <= first < table.end for first, _ in bucket.readers)


def _summed_and_stepped(
    program: Program,
    listing: Listing,
    bucket: Bucket,
    places: Mapping[tuple[Op, str], int],
    readers: Sequence[Span],
) -> Iterator[Violation]:
    """`readers` are the first and the last computation of each stage of this rank that reads the bucket."""
    rank, end = listing.rank, max(len(program.ranks[listing.rank]) - 1, 0)
    chain = [Op.REDUCE, Op.AWAIT, Op.STEP] if len(bucket.ranks) > 1 else [Op.STEP]
    missing = [kind for kind in chain if (kind, bucket.name) not in places]
    if missing:
        yield rank, end, f"{missing[0]} {bucket.name} is missing"
        return
    clip = places.get((Op.CLIP, ""))
    reduced, awaited, stepped = (places.get((kind, bucket.name), -1) for kind in (Op.REDUCE, Op.AWAIT, Op.STEP))
    first, last = min((a for a, _ in readers), default=reduced), max((b for _, b in readers), default=-1)
    instructions = program.ranks[rank]
    if awaited < reduced and clip is None:  # of the step before
        if not awaited < stepped <= min(first, reduced):
            what = f"bucket {bucket.name} must be awaited and then stepped before {instructions[first]} uses it"
            yield rank, stepped, what
        awaited = stepped = end
    if not reduced <= awaited <= stepped:
        yield rank, stepped, f"bucket {bucket.name} must be reduced, awaited and stepped in that order"
    used = reduced if len(bucket.ranks) > 1 else stepped
    inside = instructions[used].inside and all(ins.inside for ins in instructions[used:last])
    if last > used and not inside:
        yield rank, used, f"{instructions[used]} comes before {instructions[last]}, which still adds to it"
    if clip is not None and not awaited < clip < stepped:
        yield rank, clip, f"CLIP must come after every gradient is summed and before STEP {bucket.name}"


def same_collectives(program: Program, ranks: list[Listing]) -> Iterator[Violation]:
    """Sums within one group match by order alone, so all its members must start them in one order."""
    orders: dict[tuple[int, ...], tuple[int, list[str]]] = {}
    everybody = tuple(range(len(program.ranks)))
    for listing in ranks:
        own: defaultdict[tuple[int, ...], list[tuple[int, str]]] = defaultdict(list)
        for index, ins in listing.collectives:
            if ins.op in REDUCES:
                own[program.bucket_by_name[ins.name].ranks].append((index, ins.name))
            elif ins.op in (Op.LOSS, Op.CLIP):
                own[everybody].append((index, str(ins.op)))
        for group, started in own.items():
            names = [name for _, name in started]
            other, expected = orders.setdefault(group, (listing.rank, names))
            for (index, name), wanted in zip(started, expected, strict=False):
                if name != wanted:
                    yield listing.rank, index, f"starts {name} where rank {other} of the same group starts {wanted}"
            if len(names) != len(expected):
                why = f"joins {len(names)} sums of a group in which rank {other} joins {len(expected)}"
                yield listing.rank, started[-1][0], why
