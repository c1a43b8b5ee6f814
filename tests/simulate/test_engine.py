"""Timelines worked out by hand: computation, links, waits, coupled stages and sums."""

from dataclasses import replace

import pytest
from pytest import approx
from small_runs import case, chain, hand_written, star, times

from plait.errors import PlaitError
from plait.program import Op, check_program
from plait.simulate import Timeline

# Computation


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 1), (3, 5), (4, 4), (5, 2), (8, 20)])
def test_equal_stages_with_free_links_take_the_textbook_time(schedule, stages, micro_batches):
    timeline = case(chain(stages), star(stages), [1] * stages, micro_batches=micro_batches, schedule=schedule).run()
    assert timeline.step_seconds == approx((micro_batches + stages - 1) * (1 + 2))
    assert [rank.bubble for rank in timeline.ranks] == approx([(stages - 1) * 3] * stages)


def test_every_rank_computes_in_the_order_of_its_schedule():
    timeline = case(chain(2), star(2), [1, 1], micro_batches=3).run()
    assert timeline.compute_order(0) == ["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"]
    assert timeline.compute_order(1) == ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]


def test_a_stage_of_several_atoms_takes_their_sum():
    assert case(chain(4), star(1), [1]).run().step_seconds == approx(4 * (1 + 2))


def test_a_device_at_half_speed_takes_twice_as_long():
    timeline = case(chain(2), star(2, speeds=[1.0, 0.5]), [1, 1]).run()
    assert times(timeline, 1, "compute", "1F0") == (approx(1), approx(3))
    assert times(timeline, 1, "compute", "1B0") == (approx(3), approx(7))
    assert timeline.step_seconds == approx(9)


def test_the_optimiser_steps_each_bucket_after_everything_else():
    timeline = case(chain(2, parameter=8), star(2), [1, 1]).run(step=0.5)
    assert times(timeline, 0, "compute", "STEP s0.0") == (approx(6), approx(6.5))
    assert times(timeline, 1, "compute", "STEP s1.0") == (approx(6), approx(6.5))


# Links


def test_a_message_takes_its_bytes_over_the_bandwidth_and_arrives_one_latency_later():
    timeline = case(chain(2), star(2, bandwidth=2, latency=0.5), [1, 1]).run()  # 4 bytes: 2 s on the wire
    assert times(timeline, 0, "compute", "0F0") == (approx(0), approx(1))
    assert times(timeline, 0, "send", "SEND s0 m0 v0 rows 0:1 to 1") == (approx(1), approx(3.5))
    assert times(timeline, 1, "compute", "1F0") == (approx(3.5), approx(4.5))
    assert times(timeline, 1, "compute", "1B0") == (approx(4.5), approx(6.5))
    assert times(timeline, 1, "send", "SEND s1 m0 d(v0) rows 0:1 to 0") == (approx(6.5), approx(9))
    assert times(timeline, 0, "compute", "0B0") == (approx(9), approx(11))


def test_a_number_agreed_by_all_costs_a_tree_up_and_down():
    alone = case(chain(1), star(1, latency=0.5), [1]).run().step_seconds
    assert alone == approx(3)
    without = 11.0  # the case above
    assert case(chain(2), star(2, bandwidth=2, latency=0.5), [1, 1]).run().step_seconds == approx(without + 2 * 0.5)
    clipped = case(chain(2), star(2, bandwidth=2, latency=0.5), [1, 1], clip=True).run().step_seconds
    assert clipped == approx(without + 4 * 0.5)


def test_two_messages_over_one_link_take_turns():
    timeline = case(chain(2), star(3, bandwidth=2), [2, 1], rows=2).run()
    first = times(timeline, 0, "send", "SEND s0 m0 v0 rows 0:1 to 2")
    second = times(timeline, 1, "send", "SEND s0 m0 v0 rows 1:2 to 2")
    assert first == (approx(1), approx(3))
    assert second == (approx(1), approx(5))  # it leaves at once and waits before the link they share
    assert times(timeline, 2, "compute", "1F0") == (approx(5), approx(6))


def test_who_is_ready_first_goes_first():
    timeline = case(chain(2), star(3, bandwidth=2, speeds=[0.5, 1, 1]), [2, 1], rows=2).run()
    assert times(timeline, 1, "send", "SEND s0 m0 v0 rows 1:2 to 2") == (approx(1), approx(3))
    assert times(timeline, 0, "send", "SEND s0 m0 v0 rows 0:1 to 2") == (approx(2), approx(5))


def test_a_fast_link_before_a_slow_one_is_soon_free_for_others():
    slow_to_two = star(4, bandwidth=8)
    links = tuple(replace(link, bandwidth=2.0) if link.a == "d2" else link for link in slow_to_two.links)
    timeline = case(chain(2), replace(slow_to_two, links=links), [1, 2], rows=2).run()
    assert times(timeline, 0, "send", "SEND s0 m0 v0 rows 1:2 to 2") == (approx(1.5), approx(3.5))
    assert times(timeline, 0, "send", "SEND s0 m0 v0 rows 0:1 to 1") == (approx(1), approx(1.5))


def test_messages_over_different_links_go_at_once():
    timeline = case(chain(2), star(4, bandwidth=2), [2, 2], rows=2).run()
    assert times(timeline, 0, "send", "SEND s0 m0 v0 rows 0:1 to 2") == (approx(1), approx(3))
    assert times(timeline, 1, "send", "SEND s0 m0 v0 rows 1:2 to 3") == (approx(1), approx(3))


def test_links_are_full_duplex():
    timeline = case(chain(2), star(2, bandwidth=1), [1, 1], micro_batches=2).run()  # 4 s a message
    assert times(timeline, 0, "send", "SEND s0 m1 v0 rows 0:1 to 1") == (approx(5), approx(9))
    assert times(timeline, 1, "send", "SEND s1 m0 d(v0) rows 0:1 to 0") == (approx(8), approx(12))


def test_a_skip_goes_straight_to_the_stage_that_uses_it():
    timeline = case(chain(3, skips=[(0, 2)]), star(3, bandwidth=4), [1, 1, 1]).run()
    assert times(timeline, 0, "send", "SEND s0 m0 v0 rows 0:1 to 1") == (approx(1), approx(2))
    assert times(timeline, 0, "send", "SEND s0 m0 v0 rows 0:1 to 2") == (approx(2), approx(3))


LATE = """
RECV s1 m0 v0 rows 0:1 from 0
F s1 m0 rows 0:1
RECV s1 m1 v0 rows 0:1 from 0
F s1 m1 rows 0:1
B s1 m0 rows 0:1
SEND s1 m0 d(v0) rows 0:1 to 0
B s1 m1 rows 0:1
SEND s1 m1 d(v0) rows 0:1 to 0
FREE s1 m0 d
FREE s1 m1 d
LOSS
"""
EAGER = """
F s0 m0 rows 0:1
SEND s0 m0 v0 rows 0:1 to 1
F s0 m1 rows 0:1
SEND s0 m1 v0 rows 0:1 to 1
RECV s0 m0 d(v0) rows 0:1 from 1
RECV s0 m1 d(v0) rows 0:1 from 1
B s0 m0 rows 0:1
FREE s0 m0
B s0 m1 rows 0:1
FREE s0 m1
LOSS
"""


def test_a_message_waits_until_its_receive_is_posted():
    made = hand_written(case(chain(2), star(2, bandwidth=2), [1, 1], micro_batches=2, schedule="gpipe"), EAGER, LATE)
    check_program(made.program)
    timeline = made.run()
    # Sent at 2, but the receiver computes 1F0 from 3 to 4 and posts only then.
    assert times(timeline, 0, "send", "SEND s0 m1 v0 rows 0:1 to 1") == (approx(4), approx(6))
    assert times(timeline, 1, "compute", "1F1") == (approx(6), approx(7))


def test_a_free_waits_until_its_messages_have_left():
    ahead = LATE.replace("FREE s1 m0 d\n", "").replace("B s1 m1", "FREE s1 m0 d\nB s1 m1")
    late = EAGER.replace("RECV s0 m0 d(v0) rows 0:1 from 1\nRECV s0 m1 d(v0) rows 0:1 from 1\n", "")
    late = late.replace("B s0 m0", "RECV s0 m0 d(v0) rows 0:1 from 1\nRECV s0 m1 d(v0) rows 0:1 from 1\nB s0 m0")
    made = hand_written(case(chain(2), star(2, bandwidth=2), [1, 1], micro_batches=2, schedule="gpipe"), late, ahead)
    timeline = made.run()
    # The gradient of micro-batch 0 is on the wire from 9 to 11; only then may rank 1 go on to 1B1.
    assert times(timeline, 1, "send", "SEND s1 m0 d(v0) rows 0:1 to 0") == (approx(9), approx(11))
    assert times(timeline, 1, "wait", "FREE s1 m0 d") == (approx(9), approx(11))
    assert times(timeline, 1, "compute", "1B1") == (approx(11), approx(13))


def test_a_free_waits_for_a_receiver_that_is_late():
    sender = [f"F s0 m{m} rows 0:1\nSEND s0 m{m} v0 rows 0:1 to 1" for m in range(3)]
    sender += [f"RECV s0 m{m} d(v0) rows 0:1 from 1" for m in range(3)]
    sender += [f"B s0 m{m} rows 0:1\nFREE s0 m{m}" for m in range(3)]
    receiver = [f"RECV s1 m{m} v0 rows 0:1 from 0" for m in range(3)]
    for m in range(3):
        receiver += [f"F s1 m{m} rows 0:1\nB s1 m{m} rows 0:1\nSEND s1 m{m} d(v0) rows 0:1 to 0\nFREE s1 m{m} d"]
    made = case(chain(2), star(2), [1, 1], micro_batches=3)
    made = hand_written(made, "\n".join([*sender, "LOSS"]), "\n".join([*receiver, "LOSS"]))
    check_program(made.program)
    timeline = made.run(backward=0.5)
    # Made at 2.5, but rank 0 posts its receives only after all its forwards, at 3.
    assert times(timeline, 1, "compute", "1B0") == (approx(2), approx(2.5))
    assert times(timeline, 1, "send", "SEND s1 m0 d(v0) rows 0:1 to 0") == (approx(3), approx(3))
    assert times(timeline, 1, "compute", "1F1") == (approx(3), approx(4))


# Waiting


def test_waiting_for_data_on_the_wire_is_exposed_communication_and_the_rest_is_bubble():
    timeline = case(chain(2), star(2, bandwidth=2), [1, 1]).run()
    # Rank 1: waits 0..1 for rank 0 to compute, 1..3 for the wire; computes 3..6; is done while rank 0 goes on to 10.
    summary = timeline.ranks[1]
    free = timeline.step_seconds - 6
    assert times(timeline, 1, "wait", "F s1 m0 rows 0:1") == (approx(1), approx(3))
    assert summary.busy == approx(3)
    assert summary.exposed_communication == approx(2 + 2)  # and 6..8 for its gradient to leave
    assert summary.bubble == approx(1 + free - 2)


def test_communication_hidden_behind_computation_is_not_exposed():
    timeline = case(chain(2), star(2, bandwidth=4), [1, 1], micro_batches=4, schedule="gpipe").run()
    waits = [s for s in timeline.spans if s.lane == "wait" and s.rank == 1 and s.what.op == "F"]
    assert [w.what.micro_batch for w in waits] == [0]  # the others arrived while it computed


# Coupled stages


def test_replicas_that_exchange_statistics_start_each_micro_batch_together():
    made = case(chain(2, mixers=[1]), star(3, speeds=[1.0, 1.0, 0.5]), [1, 2], micro_batches=2, rows=2)
    timeline = made.run()
    # Rank 2 takes 2 s for a forward and 4 s for a backward, rank 1 half of that, and waits for it.
    assert times(timeline, 1, "compute", "1F0") == (approx(1), approx(2))
    assert times(timeline, 2, "compute", "1F0") == (approx(1), approx(3))
    assert times(timeline, 1, "compute", "1B0") == (approx(3), approx(5))
    assert times(timeline, 2, "compute", "1B0") == (approx(3), approx(7))
    assert times(timeline, 1, "compute", "1F1") == (approx(7), approx(8))


def test_replicas_without_statistics_run_ahead_of_each_other():
    timeline = case(chain(2), star(3, speeds=[1.0, 1.0, 0.5]), [1, 2], micro_batches=2, rows=2).run()
    assert times(timeline, 1, "compute", "1B0") == (approx(2), approx(4))
    assert times(timeline, 2, "compute", "1B0") == (approx(3), approx(7))


# Sums of gradients


def test_a_gradient_sum_over_two_replicas_takes_a_rings_time():
    timeline = case(chain(1, parameter=6), star(2, bandwidth=3, latency=0.25), [2], rows=2).run()
    # 2 (n-1)/n S/B + 2 (n-1) latency = 6/3 + 0.5
    assert times(timeline, 0, "reduce", "REDUCE s0.0") == (approx(3), approx(5.5))
    assert times(timeline, 1, "wait", "AWAIT s0.0") == (approx(3), approx(5.5))


def test_a_gradient_sum_starts_when_its_last_replica_is_ready():
    timeline = case(chain(1, parameter=6), star(2, bandwidth=3, speeds=[1.0, 0.5]), [2], rows=2).run()
    assert times(timeline, 0, "reduce", "REDUCE s0.0") == (approx(6), approx(8))


def test_two_sums_over_the_same_links_take_turns():
    graph = chain(2, parameter=30 * 2**20)  # more than one bucket
    timeline = case(graph, star(2, bandwidth=30 * 2**20), [2], rows=2).run()
    assert times(timeline, 0, "reduce", "REDUCE s0.0") == (approx(6), approx(7))
    assert times(timeline, 0, "reduce", "REDUCE s0.1") == (approx(7), approx(8))


# What cannot go on


def test_a_program_that_waits_for_ever_is_an_error_that_names_rank_and_instruction():
    receiver = "RECV s1 m0 v0 rows 0:1 from 0\nF s1 m0 rows 0:1"
    made = hand_written(case(chain(2), star(2), [1, 1]), "F s0 m0 rows 0:1", receiver)
    with pytest.raises(PlaitError, match="rank 1 waits for ever at F s1 m0"):
        made.run()


def test_simulating_twice_gives_the_same_timeline():
    made = case(
        chain(6, skips=[(0, 3)], parameter=8), star(5, bandwidth=3, latency=0.1), [2, 1, 2], micro_batches=4, rows=3
    )
    assert made.run() == made.run()


# Overlap


def overlapped(overlap: str, **options: object) -> Timeline:
    """Four atoms of 30 MiB on two replicas, a bucket each, whose sums take 1 s each; updates of half a second."""
    made = case(chain(4, parameter=30 * 2**20), star(2, bandwidth=30 * 2**20), [2], rows=2, overlap=overlap, **options)
    return made.run(step=0.5)


def test_without_overlap_sums_and_updates_follow_the_backward():
    assert overlapped("off").step_seconds == approx(4 * 3 + 4 * 1 + 4 * 0.5)


def test_sums_pass_beside_the_backward_and_updates_beside_sums():
    timeline = overlapped("backward")
    assert times(timeline, 0, "reduce", "REDUCE s0.0") == (approx(4 + 2), approx(4 + 3))
    assert times(timeline, 0, "reduce", "REDUCE s0.3") == (approx(12), approx(13))
    # Three updates pass while the last sum does, but the first of them begins when all is computed.
    assert timeline.step_seconds == approx(12 + 4 * 0.5)


def test_the_next_step_waits_only_for_what_it_reads():
    timeline = overlapped("full")
    # The bucket that is final last is read first, and its sum takes the first second of the next step. The others' are
    # there by then, so they are updated meanwhile, for half a second longer.
    assert timeline.step_seconds == approx(3 * 0.5 + 0.5 + 12)
    assert [span.label for span in timeline.spans if span.rank == 0 and span.what.op is Op.STEP] == [
        "STEP s0.2",
        "STEP s0.1",
        "STEP s0.0",
        "STEP s0.3",
    ]
