"""ServerApp, Strategy and ClientApp together in one process: a Grid that hands messages straight to the real ClientApp."""

import json
import logging
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flower_kit import PERMISSIVE, job_of, make_nodes
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import fedpdm.engines.flower.server.strategy as strategy
from fedpdm.compression.wire import decode, encode
from fedpdm.engines.flower.client.app import app
from fedpdm.engines.flower.client.store import open_store
from fedpdm.engines.flower.job import job_toml, read_job
from fedpdm.engines.flower.processes.status import client_status
from fedpdm.engines.flower.protocol import Meeting, Reply, Request, pack, unpack
from fedpdm.engines.flower.server.app import train
from fedpdm.engines.flower.server.patience import Patience
from fedpdm.errors import UserError

SETTINGS = ["rounds.participants=0", "local.steps=2", "algorithm.name=scaffold", "privacy.epsilon=2.0"]
OPTIONS: dict[str, Any] = {"flower.nodes": 2, "flower.wait": 0.5, "flower.timeout": 0.3}


def run_config(grid: "OneProcess", name: str = "run") -> dict[str, Any]:
    return OPTIONS | {"flower.job": str(grid.folder / "job.toml"), "flower.out": str(grid.folder / name)}


class OneProcess(Grid):
    """Nodes by id; what a test puts into `spoil` happens to their replies."""

    def __init__(self, folder: Path, nodes: dict[int, int], *settings: str, **others: Any) -> None:
        self.nodes: dict[int, Context] = {}
        self.folder = folder
        job = job_of(*SETTINGS, *settings, **others)
        (folder / "job.toml").write_text(job_toml(job))
        make_nodes(folder, PERMISSIVE, job=job)
        for node, client in nodes.items():
            self.connect(node, client)
        self.spoil: dict[int, Callable[[Message, Message], list[Message]]] = {}
        self.replies: list[Message] = []

    def connect(self, node: int, client: int) -> None:
        own = {"client": client, "state-dir": str(self.folder / f"client-{client}"), "policy": str(self.folder / "policy.toml")}
        own["data-path"] = str(self.folder / f"own-{client}.npz")
        self.nodes[node] = Context(0, node, own, RecordDict(), {})  # type: ignore[arg-type]

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            names.append(message.object_id)
            node = message.metadata.dst_node_id
            reply = app(message=message, context=self.nodes[node])
            training = message.metadata.message_type == "train"
            self.replies += self.spoil[node](message, reply) if training and node in self.spoil else [reply]
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        ready = [reply for reply in self.replies if reply.metadata.reply_to_message_id in wanted]
        self.replies = [reply for reply in self.replies if reply not in ready]
        return ready

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(strategy, "POLL_SECONDS", 0.01)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1  # Flower's process sets them
    logging.getLogger("flwr").addHandler(caplog.handler)
    caplog.set_level(logging.INFO, "flwr")


def test_a_job_through_server_app_and_client_app(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = OneProcess(tmp_path, {11: 0, 12: 1, 13: 2})
    summary = train(grid, run_config(grid))
    assert summary["messages_used"] == 9
    assert "client 2 is connected" in caplog.text
    assert "round 3 of 3: 3 messages used, 0 missing" in caplog.text
    again = train(grid, run_config(grid))
    assert again == summary, "a finished run is left alone"


def test_whatever_is_said_waits_for_its_time(tmp_path: Path) -> None:
    """Answers and refusals, also of unreadable requests: nothing leaves before `reply_after` has passed."""
    grid = OneProcess(tmp_path, {11: 0})
    (tmp_path / "policy.toml").write_text(PERMISSIVE + "[time]\nreply_after = 0.3\n")
    other = ConfigRecord({"protocol": 99})
    for kind, content in (
        ("query", pack(Meeting("0" * 64))),
        ("query", RecordDict({"x": ConfigRecord({"y": 1})})),
        ("train", RecordDict()),
        ("evaluate", RecordDict({"fedpdm": other})),
        ("train", pack(Request("train", "0" * 64, 0, 0, "", b""))),
    ):
        began = time.monotonic()
        grid.push_messages([Message(content, 11, kind)])
        assert time.monotonic() - began >= 0.3, kind
    said = [dict(reply.content.config_records["fedpdm"])["refused"] for reply in grid.replies]
    assert said == ["job", "malformed", "malformed", "malformed", "job"]
    # a reply that is there when the server's time is over is taken
    grid.replies.clear()
    assert len(strategy._exchange(grid, [Message(RecordDict(), 11, "train")], 0.0)) == 1


def as_another_client(message: Message, reply: Message) -> list[Message]:
    said = unpack(Reply, reply.content)
    return [Message(pack(said._replace(client=1)), reply_to=message)]


BAD = {
    "late": lambda message, reply: [],
    "duplicate": lambda message, reply: [reply, Message(reply.content, reply_to=message)],
    "malformed": lambda message, reply: [Message(RecordDict({"x": ConfigRecord({"y": 1})}), reply_to=message)],
    "impostor": as_another_client,
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_reply_is_logged_by_name_and_the_run_goes_on(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = OneProcess(tmp_path, {11: 0, 12: 1, 13: 2}, "rounds.total=1")
    grid.spoil[11] = BAD[name]
    summary = train(grid, run_config(grid))
    assert f"round 1, client 0: {name}" in caplog.text
    assert summary["messages_used"] == (3 if name == "duplicate" else 2)


def test_a_node_that_came_back_under_a_new_id_takes_the_place_of_the_silent_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = OneProcess(tmp_path, {11: 0, 12: 1, 13: 2})

    def falls_silent(message: Message, reply: Message) -> list[Message]:
        grid.connect(21, 0)
        return []

    grid.spoil[11] = falls_silent
    summary = train(grid, run_config(grid))
    assert "client 0 is connected already; node 21 is kept in reserve" in caplog.text
    # lost in round 1; in round 2 the newcomer was met and in reserve while the silent one was asked once more
    assert summary["messages_used"] == 7
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["missing"] for row in rows] == [1, 1, 0]


def test_too_few_nodes_end_the_run_with_the_way_out(tmp_path: Path) -> None:
    grid = OneProcess(tmp_path, {11: 0})
    with pytest.raises(UserError, match=r"1 of 2 clients are connected after 0\.5 s"):
        train(grid, run_config(grid))
    grid.connect(12, 1)
    assert train(grid, run_config(grid))["rounds"] == 3


def test_clients_evaluate_the_model_on_rows_that_they_hold_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Noised counts of all clients, after the second and the last round: on their ledgers, in the log, in the summary."""
    evaluation = {"share": 0.3, "every": 2, "epsilon": 40.0}
    grid = OneProcess(tmp_path, {11: 0, 12: 1, 13: 2}, evaluation=evaluation)
    summary = train(grid, run_config(grid))
    rows = [json.loads(line) for line in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [2, 3]
    assert summary["evaluation"] == rows[-1]
    assert rows[-1]["clients"] == 3
    assert rows[-1]["rows"] == pytest.approx(0.3 * 96, abs=25), "a share of all rows, with noise"
    low, high = rows[-1]["accuracy"]["interval"]
    assert 0 <= low <= rows[-1]["accuracy"]["value"] <= high <= 1
    assert "by noised counts of 3 clients: AUC" in caplog.text
    assert summary["metrics"] == rows[-1], "in the place of figures on test rows, of which the server has none"
    assert summary["epsilon"] > 40, "the evaluations are part of what was spent"
    state = client_status(tmp_path / "client-0")
    assert state["jobs"][0]["evaluations"] == 2
    assert state["budget"]["releases"] == 5
    assert state["jobs"][0]["epsilon_spent"] == pytest.approx(summary["epsilon"])
    with open_store(tmp_path / "client-0") as store:
        told = [kept.status for kept in store.messages() if kept.job.endswith(":evaluation")]
    assert told == ["accepted", "pending"], "the second request says that the first counts were used"


def test_an_old_checkpoint_that_is_put_back_stops_the_run_and_makes_no_empty_rounds(tmp_path: Path) -> None:
    grid = OneProcess(tmp_path, {11: 0, 12: 1, 13: 2})
    checkpoint, old = tmp_path / "run" / "checkpoint.safetensors", tmp_path / "old"

    def copy(_: Message, reply: Message) -> list[Message]:
        if checkpoint.exists() and not old.exists():
            old.write_bytes(checkpoint.read_bytes())
        return [reply]

    grid.spoil[11] = copy
    assert train(grid, run_config(grid))["left_out"] == []
    for name in ("summary.json", "SHA256SUMS"):
        (tmp_path / "run" / name).unlink()
    checkpoint.write_bytes(old.read_bytes())
    with pytest.raises(UserError, match="3 clients say that this checkpoint is an old copy: put the newest one back"):
        train(grid, run_config(grid))


def test_a_message_that_no_honest_client_can_send_is_refused_and_the_round_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = OneProcess(tmp_path, {11: 0, 12: 1, 13: 2})

    size = math.prod(read_job(tmp_path / "job.toml").shape)

    def ten_times(request: Message, reply: Message) -> list[Message]:
        asked, said = unpack(Request, request.content), unpack(Reply, reply.content)
        parts = [part._replace(values=10 * part.values) for part in decode(said.vectors, dimensions=[size] * 2, limit=1e6)]
        return [Message(pack(Reply.of(asked, encode(parts))), reply_to=request)]

    grid.spoil[11] = ten_times
    summary = train(grid, run_config(grid))
    assert (summary["messages_refused"], summary["left_out"], summary["unchecked"]) == (3, [0], None)
    assert "client 0: far: Its distance from the public point is" in caplog.text


def test_a_client_whose_messages_cannot_be_read_is_left_out_too(tmp_path: Path) -> None:
    grid = OneProcess(tmp_path, {11: 0, 12: 1, 13: 2})

    def cut(request: Message, reply: Message) -> list[Message]:
        asked, said = unpack(Request, request.content), unpack(Reply, reply.content)
        return [Message(pack(Reply.of(asked, said.vectors[:-3])), reply_to=request)]

    grid.spoil[11] = cut
    summary = train(grid, run_config(grid))
    assert (summary["messages_refused"], summary["left_out"]) == (3, [0])


def test_a_node_writes_no_line_of_the_servers_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a node says in a refusal, an error, or in the place of a job's name: the log has this package's own words."""
    grid = OneProcess(tmp_path, {11: 0, 12: 1, 13: 2})
    forged = "spent: \x1b[2J\nfedpdm: round 9 of 9: 3 messages used, 0 missing, accuracy 1.0000" + "x" * 100_000
    turns = [
        lambda asked: pack(Reply(asked.job, asked.round, asked.client, refused=forged, reason=forged)),
        lambda asked: pack(Reply(asked.job, asked.round, asked.client, refused="budget", reason=forged)),
        lambda asked: pack(Reply(forged, asked.round, asked.client, vectors=b"1")),
    ]

    def forge(request: Message, reply: Message) -> list[Message]:
        if not turns:
            return [Message(Error(code=3, reason=forged), reply_to=request)]
        return [Message(turns.pop(0)(unpack(Request, request.content)), reply_to=request)]

    grid.spoil[11] = forge
    train(grid, run_config(grid))
    assert turns == []
    lines = [record.getMessage() for record in caplog.records if record.name == "flwr"]
    assert any("unknown: It refuses with a code" in line for line in lines)
    assert any("budget: This client's budget is too small" in line for line in lines)
    assert any("a job without a name" in line for line in lines)
    for line in lines:
        assert line.isprintable(), line[:300]
        assert len(line) < 500
        assert not line.startswith("fedpdm: round 9")


class Waiting:
    """A grid and a clock: message `n` is answered after `times[n]` seconds, if at all."""

    def __init__(self, *times: float) -> None:
        self.times, self.now, self.sent = times, 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def push_messages(self, messages: list[Any]) -> list[str]:
        self.sent = self.now
        return [str(n) for n, _ in enumerate(messages)]

    def pull_messages(self, names: list[str]) -> list[Any]:
        there = [name for name in names if self.times[int(name)] <= self.now - self.sent]
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=name)) for name in there]


def test_a_slow_machine_does_not_look_like_dead_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait follows the others' answers: nobody who answers is given up, and the dead cost a multiple of that."""
    patience = Patience(600.0, 4.0)
    monkeypatch.setattr(strategy, "POLL_SECONDS", 0.5)

    def waited(*times: float) -> tuple[int, float]:
        grid = Waiting(*times)
        monkeypatch.setattr(strategy, "time", grid)
        heard = strategy._exchange(grid, list(times), patience)  # type: ignore[arg-type]
        return len(heard), grid.now

    assert waited(1.0, 2.0, math.inf) == (2, 15.0)  # quick answers: the least of all waits
    assert waited(1.0, 12.0, 40.0, 90.0, math.inf) == (4, 360.0)  # every answer makes room for the next
    assert waited(1.0, math.inf, math.inf) == (1, 600.0)  # one answer says little
    assert waited(math.inf, 200.0) == (1, 600.0)  # never more than the timeout


def test_a_sum_waits_longer_for_those_who_fell_silent_in_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """One death counts in one sum, and a member that stays away costs the longer wait once."""
    silent: set[int] = set()
    waits: list[float] = []

    def exchange(_: Any, messages: list[Message], patience: Patience) -> list[Message]:
        waits.append(patience.least)
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
        return [Message(pack(Reply("0" * 64, 0, 0)), reply_to=m) for m in messages if m.metadata.dst_node_id not in silent]

    class TwoSteps:
        """A coordinator whose sums have two steps."""

        complete, keys = True, {}

        def meet(self, keys: Any) -> None: ...

        def one_round(self, ask: Any, there: Iterable[int]) -> tuple[()]:
            for step in ("advertise", "pieces"):
                said = ask({client: Request(step, "0" * 64, 0, client, "", b"") for client in there})
                there = [client for client, answer in said if isinstance(answer, Reply)]
            return ()

    monkeypatch.setattr(strategy, "_exchange", exchange)
    nodes = SimpleNamespace(wait_for=lambda *_: {1: 1, 2: 2, 3: 3}, keys=dict, doubt=lambda _: None)
    sums = strategy.SecureSums(TwoSteps(), nodes, 2, 1.0, Patience(600.0, 4.0))  # type: ignore[arg-type]
    monkeypatch.setattr(sums, "_report", lambda: None)

    def waited(*who: int) -> list[float]:
        silent.clear()
        silent.update(who)
        waits.clear()
        sums._one_round(None, 1, 600.0)  # type: ignore[arg-type]
        return list(waits)

    assert waited() == [15.0, 15.0]
    assert waited(2) == [15.0, 15.0]
    assert waited() == [75.0, 15.0]  # it may come back
    assert waited() == [15.0, 15.0]
    assert waited(3) == [15.0, 15.0]
    assert waited(3) == [75.0, 15.0]
    for _ in range(3):
        assert waited(3) == [15.0, 15.0]  # it has stayed away
    assert waited() == [15.0, 15.0]
    assert waited(3) == [15.0, 15.0]  # it was back, so this is new
    assert waited() == [75.0, 15.0]
