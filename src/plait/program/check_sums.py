"""What the static check proves of sums over ranks: gradients, the loss and the norm."""

from collections import defaultdict
from collections.abc import Iterator

from plait.program.instructions import Instruction, Op
from plait.program.listing import Listing
from plait.program.program import Bucket, Program

REDUCES = (Op.REDUCE, Op.REDUCE_TIED)
Violation = tuple[int, int, str]


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
        for bucket in program.buckets:
            if rank in bucket.ranks:
                yield from _summed_and_stepped(rank, end, bucket, places)


def _wrong_bucket(program: Program, rank: int, ins: Instruction) -> str | None:
    bucket = program.bucket_by_name.get(ins.name)
    if bucket is None or rank not in bucket.ranks:
        return f"bucket {ins.name} does not belong to rank {rank}"
    if ins.op is not Op.STEP and len(bucket.ranks) == 1:
        return f"{ins}: the bucket is on one rank, so there is nothing to sum"
    if ins.op in REDUCES and (ins.op is Op.REDUCE_TIED) != bucket.tied:
        return f"{ins}: the bucket {'holds' if bucket.tied else 'does not hold'} a tied parameter"
    return None


def _summed_and_stepped(rank: int, end: int, bucket: Bucket, places: dict[tuple[Op, str], int]) -> Iterator[Violation]:
    chain = [Op.REDUCE, Op.AWAIT, Op.STEP] if len(bucket.ranks) > 1 else [Op.STEP]
    missing = [kind for kind in chain if (kind, bucket.name) not in places]
    if missing:
        yield rank, end, f"{missing[0]} {bucket.name} is missing"
        return
    found = [places[kind, bucket.name] for kind in chain]
    if found != sorted(found):
        yield rank, found[-1], f"bucket {bucket.name} must be reduced, awaited and stepped in that order"
    clip = places.get((Op.CLIP, ""))
    if clip is not None and not (found[-2] if len(found) > 1 else -1) < clip < found[-1]:
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
