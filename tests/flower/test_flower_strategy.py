"""ServerApp, Strategy and ClientApp together in one process: a Grid that hands messages straight to the real ClientApp."""

import json
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flower_kit import PERMISSIVE, job_of, make_nodes
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import fedpdm.engines.flower.server.strategy as strategy
from fedpdm.engines.flower.client.app import app
from fedpdm.engines.flower.client.store import open_store
from fedpdm.engines.flower.job import job_toml
from fedpdm.engines.flower.processes.status import client_status
from fedpdm.engines.flower.protocol import Meeting, Reply, Request, pack, unpack
from fedpdm.engines.flower.server.app import train
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
