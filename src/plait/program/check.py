"""The static check: what is proved of a program before anything runs.

1. `_computations`: every micro-batch goes forward and backward once through every stage, its rows exactly
   covered by the stage's replicas, the ranks of each of which have the same rows; stages that share a rank share all
   their ranks and rows.
2. `_messages`: every RECV has its SEND, with the same rows, in the same order.
3. `_everything_arrives`: every value a forward needs, and every gradient a backward needs, arrives once, in full.
4. `_order`: on each rank, nothing is used before it is made, posted or handed over by another stage there.
5. `_frees`: everything sent is waited for and forgotten, once.
6. `insides`: what is to happen inside a computation stands right before one that it can happen in.
7. `synchronisation`: every parameter's bucket is summed by all its ranks and stepped once, in that order; or waited for
   and stepped before anything reads it, and summed then.
8. `same_collectives`: ranks that sum together start their sums in the same order.
9. `_no_deadlock`: run with all waits and no times (`waits`), every rank reaches its end. A step that waits for sums of
   the one before does so before it begins any, and every rank has begun those before its end: so it goes on.

Memory is checked by `memory.check_memory`, which needs costs. A violation names rank and instruction and
prints the surrounding grid of ranks with the offending cell marked.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations

from plait.program.check_sums import Violation, insides, same_collectives, synchronisation
from plait.program.error import ProgramError
from plait.program.garbage import no_collection
from plait.program.instructions import Instruction, Op
from plait.program.listing import Listing, Placed, listings
from plait.program.messages import forward_messages, gradient_messages
from plait.program.program import Program, source_stage
from plait.program.waits import stuck_ranks

_PIECES = (Op.F, Op.B, Op.I, Op.W)


Rule = Callable[[Program, list[Listing]], Iterator[Violation]]


def check_program(program: Program) -> None:
    """Raises ProgramError at the first violation; returns if the program is proved right."""
    rules: tuple[Rule, ...] = (
        _computations,
        _messages,
        _everything_arrives,
        _order,
        _frees,
        insides,
        synchronisation,
        same_collectives,
        _no_deadlock,
    )
    with no_collection():
        ranks = listings(program)
        for rule in rules:
            for rank, index, why in rule(program, ranks):
                raise ProgramError(program, rank, index, why)


def _computations(program: Program, ranks: list[Listing]) -> Iterator[Violation]:
    for one, other in combinations(program.stages, 2):
        shared = sorted(set(one.ranks) & set(other.ranks))
        if shared and (one.ranks, one.rows, one.tensor) != (other.ranks, other.rows, other.tensor):
            yield shared[0], 0, "two stages of this rank do not share all their ranks, rows and tensor groups"
    for listing in ranks:
        for index, ins in listing.computations:
            op, number, micro_batch, _, _, _, first, last, _ = ins
            stage = program.stages[number] if 0 <= number < len(program.stages) else None
            if stage is None or listing.rank not in stage.ranks:
                yield listing.rank, index, f"{ins} is not this rank's: stage {number} runs elsewhere"
                return
            if not 0 <= micro_batch < len(stage.rows):
                yield listing.rank, index, f"there is no micro-batch {micro_batch}"
                return
            expected = stage.rows[micro_batch][stage.ranks.index(listing.rank)]
            if (first, last) != expected or first >= last:
                yield listing.rank, index, f"{ins} should be of rows {expected[0]}:{expected[1]}"
            if listing.place[op, number, micro_batch] != index:
                yield listing.rank, index, f"{ins} runs twice"
    for number, stage in enumerate(program.stages):
        if stage.tensor < 1 or len(stage.ranks) % stage.tensor:
            yield stage.ranks[0], 0, f"the {len(stage.ranks)} ranks of stage {number} are no groups of {stage.tensor}"
            return
        for micro_batch, of_ranks in enumerate(stage.rows):
            spans = stage.spans(micro_batch)
            if of_ranks != tuple(span for span in spans for _ in range(stage.tensor)):
                why = f"ranks of a tensor group of stage {number} differ in their rows of micro-batch {micro_batch}"
                yield stage.ranks[0], 0, why
            edges = [0, *(last for _, last in spans)]
            if [first for first, _ in spans] != edges[:-1] or edges[-1] != program.micro_batch_rows[micro_batch]:
                yield stage.ranks[0], 0, f"the rows of micro-batch {micro_batch} are not covered by stage {number}"
            for rank, (first, last) in zip(stage.ranks, of_ranks, strict=True):
                if last > first:
                    yield from _complete(ranks[rank], number, micro_batch)


def _complete(listing: Listing, stage: int, micro_batch: int) -> Iterator[Violation]:
    """One forward, and one backward in one piece or in two halves."""
    forward, fused, first_half, second_half = (listing.place.get((op, stage, micro_batch)) for op in _PIECES)
    if forward is None:
        yield listing.rank, fused or 0, f"F s{stage} m{micro_batch} is missing"
    elif fused is None and (first_half is None or second_half is None):
        yield listing.rank, forward, f"B s{stage} m{micro_batch} is missing"
    elif fused is not None and (first_half is not None or second_half is not None):
        yield listing.rank, fused, f"B s{stage} m{micro_batch} runs both whole and in halves"


def _messages(program: Program, ranks: list[Listing]) -> Iterator[Violation]:
    sent = _by_channel(((listing.rank, listing.sends) for listing in ranks), receiving=False)
    received = _by_channel(((listing.rank, listing.receives) for listing in ranks), receiving=True)
    for channel in sorted(sent.keys() | received.keys()):
        source, sink = channel
        out, into = sent[channel], received[channel]
        for (send_index, send), (index, receive) in zip(out, into, strict=False):
            # value, whether its gradient, micro-batch and rows: all but who does it and with whom
            if send[2:5] != receive[2:5] or send[6:8] != receive[6:8]:
                yield sink, index, f"{receive} does not match what rank {source} sends at this point: {send}"
            if not _sends_its_own(program, source, send):
                yield source, send_index, f"{send} is not of a stage of rank {source} that makes it"
        for index, ins in into[len(out) :]:
            yield sink, index, f"no SEND on rank {source} matches {ins}"
        for index, ins in out[len(into) :]:
            yield source, index, f"no RECV on rank {sink} matches {ins}"


def _by_channel(
    placed: Iterator[tuple[int, list[Placed]]], *, receiving: bool
) -> defaultdict[tuple[int, int], list[Placed]]:
    channels: defaultdict[tuple[int, int], list[Placed]] = defaultdict(list)
    for rank, messages in placed:
        for message in messages:
            peer = message[1].peer
            channels[(peer, rank) if receiving else (rank, peer)].append(message)
    return channels


def _sends_its_own(program: Program, rank: int, send: Instruction) -> bool:
    edge = program.edge_by_name.get(send.name)
    if edge is None or send.stage not in (edge.consumers if send.gradient else (edge.producer,)):
        return False
    if send.gradient and source_stage(edge, send.stage, program.stages) != send.stage:
        return False  # it gives the gradient to the stage it took the value from
    return rank in program.stages[send.stage].ranks


def _everything_arrives(program: Program, ranks: list[Listing]) -> Iterator[Violation]:
    missing = set(_needed(program))
    for listing in ranks:
        for index, ins in listing.receives:
            item = (listing.rank, *ins[1:8])
            if item not in missing:
                yield listing.rank, index, f"{ins} carries what nobody needs, or what has come before"
            missing.discard(item)
    for rank, stage, micro_batch, name, gradient, _, first, last in sorted(missing):
        place = ranks[rank].maker(stage, micro_batch, gradient=gradient)
        what = f"the gradient of {name}" if gradient else name
        yield rank, place or 0, f"{what} rows {first}:{last} of micro-batch {micro_batch} never arrives"


def _needed(program: Program) -> Iterator[tuple[int, int, int, str, bool, int, int, int]]:
    """Every message a rank must receive: (rank, and the fields of its RECV but the operation)."""
    for edge in program.edges:
        making, name, returns = program.stages[edge.producer], edge.value.name, edge.value.requires_grad
        for consumer in edge.consumers:
            if source_stage(edge, consumer, program.stages) != consumer:
                continue
            using = program.stages[consumer]
            for m in range(len(program.micro_batch_rows)):
                for i, j, (first, last) in forward_messages(edge.value, making, using, m):
                    yield using.ranks[j], consumer, m, name, False, making.ranks[i], first, last
                for j, i, (first, last) in gradient_messages(edge.value, making, using, m) if returns else ():
                    yield making.ranks[i], edge.producer, m, name, True, using.ranks[j], first, last


def _order(program: Program, ranks: list[Listing]) -> Iterator[Violation]:
    """On one rank: F before its sends and its B, B before its gradients' sends, receives before their use."""
    for listing in ranks:
        rank = listing.rank
        yield from _order_of_computations(listing)
        yield from _order_of_hand_overs(program, listing)
        for index, ins in listing.sends:
            made = listing.maker(ins.stage, ins.micro_batch, gradient=ins.gradient)
            if made is None or (made > index and not ins.inside):
                yield rank, index, f"{ins} comes before what it sends is made"
        for index, ins in listing.receives:
            used = listing.maker(ins.stage, ins.micro_batch, gradient=ins.gradient)
            if used is None or used < index:
                yield rank, index, f"{ins} is posted after the computation that needs it"


def _order_of_computations(listing: Listing) -> Iterator[Violation]:
    latest_forward: dict[int, int] = {}
    for index, ins in listing.computations:
        op, stage, micro_batch = ins[:3]
        if op is Op.F:
            # One device updates its buffers (BatchNorm statistics) in the order of the micro-batches.
            if latest_forward.get(stage, -1) > micro_batch:
                yield listing.rank, index, f"{ins} comes after a later micro-batch's forward"
            latest_forward[stage] = micro_batch
        elif op is Op.W:
            if listing.place[Op.I, stage, micro_batch] > index:
                yield listing.rank, index, f"{ins} comes before its input-gradient half"
        elif listing.place[Op.F, stage, micro_batch] > index:
            yield listing.rank, index, f"{ins} comes before its forward"


def _order_of_hand_overs(program: Program, listing: Listing) -> Iterator[Violation]:
    """A value is taken while its source has it, and its gradient is there when the source goes back."""
    for value, source, sink in program.hand_overs:
        if listing.rank not in program.stages[sink].ranks:
            continue
        for m in range(len(program.micro_batch_rows)):
            made, taken = listing.maker(source, m, gradient=False), listing.maker(sink, m, gradient=False)
            if made is None or taken is None:
                continue  # no rows here
            if made > taken:
                yield listing.rank, taken, f"stage {sink} takes {value.name} before stage {source} has it"
            returned = listing.maker(sink, m, gradient=True) if value.requires_grad else taken
            given_up = listing.maker(source, m, gradient=True)
            if returned is None or given_up is None or returned > given_up:
                what = f"the gradient of {value.name}" if value.requires_grad else value.name
                yield listing.rank, given_up or 0, f"stage {source} goes back before stage {sink} is done with {what}"


def _frees(_: Program, ranks: list[Listing]) -> Iterator[Violation]:
    """A send that is never waited for may never leave, and its memory is never given back."""
    for listing in ranks:
        last_send = {(ins.stage, ins.micro_batch, ins.gradient): (index, ins) for index, ins in listing.sends}
        for index, ins in listing.frees:
            sent = last_send.pop((ins.stage, ins.micro_batch, ins.gradient), None)
            done = listing.maker(ins.stage, ins.micro_batch, gradient=True)
            if sent is None:
                yield listing.rank, index, f"{ins} frees nothing that was sent"
            elif sent[0] > index or done is None or done > index:
                yield listing.rank, index, f"{ins} comes before the backward and its sends are done"
        for index, ins in last_send.values():
            yield listing.rank, index, f"{ins} is never freed"


def _no_deadlock(program: Program, _: list[Listing]) -> Iterator[Violation]:
    for rank, index in stuck_ranks(program):
        yield rank, index, f"deadlock: {program.ranks[rank][index]} waits for what can never happen"
