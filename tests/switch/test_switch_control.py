"""Who may join, on which slots, and what a switch says about itself."""

import json
import socket
import threading
import time

import pytest
import torch
from switch_help import KEY, joined, on_all

from plait.errors import PlaitError
from plait.switch import native
from plait.switch.channel import call
from plait.switch.daemon import Switch
from plait.switch.worker import SwitchUnavailable, SwitchWorker


def join(switch: Switch, **options: object) -> SwitchWorker:
    wanted = {"job": "job", "key": KEY, "worker": 0, "count": 1, **options}
    return SwitchWorker(switch.address, **wanted)  # type: ignore[arg-type]


def wait_until(condition: object, seconds: float = 5.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_wrong_key(switch: Switch) -> None:
    with pytest.raises(SwitchUnavailable, match="the job key is wrong"):
        join(switch, key="another")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"worker": 2, "count": 2}, "worker 2 is none of 2"),
        ({"count": 65}, "1 to 64 workers"),
        ({"slots": 0}, "0 slots"),
        ({"slots": float("inf")}, "garbles cannot convert"),
        ({"job": "x" * 201}, "1 to 200 letters"),
    ],
)
def test_requests_that_make_no_sense(switch: Switch, options: dict[str, object], reason: str) -> None:
    with pytest.raises(SwitchUnavailable, match=reason):
        join(switch, **options)


def test_a_job_that_runs_takes_nobody_more(switch: Switch) -> None:
    with join(switch), pytest.raises(SwitchUnavailable, match="running already"):
        join(switch)


def test_workers_must_agree_on_their_number(switch: Switch) -> None:
    found = on_all(3, lambda n: join(switch, worker=n, count=(2, 3, 2)[n], timeout_seconds=2.0), seconds=10.0)
    assert any("give all the same count" in str(one) for one in found)


def test_a_worker_twice_is_refused_and_the_job_begins_all_the_same(switch: Switch) -> None:
    kept: list[SwitchWorker] = []
    first = threading.Thread(target=lambda: kept.append(join(switch, worker=0, count=2)), daemon=True)
    first.start()
    wait_until(lambda: switch.status()["jobs"])
    with pytest.raises(SwitchUnavailable, match="has a worker 0 already"):
        join(switch, worker=0, count=2)
    kept.append(join(switch, worker=1, count=2))
    assert switch.status()["jobs"][0]["state"] == "running"


def test_who_gives_up_waiting_makes_room(switch: Switch) -> None:
    with pytest.raises(SwitchUnavailable, match=r"did not answer a request to join in 0.2 s"):
        join(switch, worker=0, count=2, timeout_seconds=0.2)
    wait_until(lambda: not switch.status()["jobs"])
    assert all(isinstance(worker, SwitchWorker) for worker in joined(switch, 2))


def test_slots_run_out_and_come_back() -> None:
    with Switch(key=KEY, slots=100) as switch:
        first = join(switch, job="first")
        assert switch.status()["free_slots"] == 36
        with pytest.raises(SwitchUnavailable, match="slots are exhausted: 64 in a row were asked for, 36 of 100"):
            join(switch, job="second")
        with join(switch, job="small", slots=36) as small:
            small.all_reduce(torch.ones(100_000))
        first.close()
        wait_until(lambda: switch.status()["free_slots"] == 100)
        join(switch, job="second").close()


def test_every_job_has_an_epoch_of_its_own(switch: Switch) -> None:
    epochs = set()
    for _ in range(3):
        with join(switch):
            epochs.add(switch.status()["jobs"][0]["epoch"])
        wait_until(lambda: not switch.status()["jobs"])
    assert len(epochs) == 3


def test_connections_that_talk_nonsense_are_closed(switch: Switch) -> None:
    for words in (
        b"\n",
        b"[1]\n",
        b"\xff\xfe\n",
        b'{"type": "join"}\n',
        b"GET / HTTP/1.1\r\n\r\n",
        b"[" * 100_000 + b"\n",
        b"",
    ):
        with socket.create_connection(switch.address, timeout=10.0) as connection:
            stream = connection.makefile("rb")
            assert json.loads(stream.readline())["type"] == "hello"
            connection.sendall(words)
            connection.shutdown(socket.SHUT_WR)
            assert b"joined" not in stream.read()
    join(switch).close()


def test_counters_over_the_control_channel(switch: Switch) -> None:
    workers = joined(switch, 2, job="named")
    on_all(2, lambda n: workers[n].all_reduce(torch.ones(10_000)))
    channel, status = call(switch.address, {"type": "status"}, KEY, 5.0)
    channel.close()
    assert status["jobs"] == [
        {
            "name": "named",
            "state": "running",
            "workers": [0, 1],
            "count": 2,
            "epoch": status["jobs"][0]["epoch"],
            "slots": 64,
            "summed": 12,
            "completed": 6,
        }
    ]
    assert status["counters"]["summed"] == 12


def test_a_switch_with_many_addresses_answers_from_the_one_it_was_called_by() -> None:
    with Switch(key=KEY, host="0.0.0.0") as switch:
        port = switch.address[1]

        def run(number: int) -> torch.Tensor:
            address = (f"127.0.0.{2 + number}", port)
            with SwitchWorker(address, job="job", key=KEY, worker=number, count=2, silence_seconds=2.0) as worker:
                tensor = torch.ones(100)
                worker.all_reduce(tensor)
                return tensor

        found = on_all(2, run)
    assert all(isinstance(tensor, torch.Tensor) and tensor.eq(2.0).all() for tensor in found), found


def test_without_the_library_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_path", lambda: None)
    assert "for want of a C compiler" in str(native.missing())
    with pytest.raises(PlaitError, match="install Plait again"):
        Switch(key=KEY)
    with pytest.raises(PlaitError, match="install Plait again"):
        SwitchWorker(("127.0.0.1", 1), job="job", key=KEY, worker=0, count=1)


def test_a_port_that_is_taken(switch: Switch) -> None:
    with pytest.raises(PlaitError, match="cannot listen"):
        Switch(key=KEY, control_port=switch.address[1])


def test_a_closed_worker_says_so(switch: Switch) -> None:
    worker = join(switch)
    worker.close()
    worker.close()
    with pytest.raises(SwitchUnavailable, match="is closed"):
        worker.all_reduce(torch.ones(1))
