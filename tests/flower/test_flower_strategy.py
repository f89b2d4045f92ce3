"""ServerApp, Strategy and ClientApp together in one process: a Grid that hands messages straight to the real ClientApp."""

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flower_kit import CLASSES, PERMISSIVE, own_arrays
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import fedpdm.engines.flower.server.strategy as strategy
from fedpdm.engines.flower.client.app import app
from fedpdm.engines.flower.protocol import Reply, pack, unpack
from fedpdm.engines.flower.server.app import train
from fedpdm.errors import UserError

SETTINGS: dict[str, Any] = {
    "data.name": "own",
    "data.clients": 3,
    "rounds.total": 3,
    "rounds.participants": 0,
    "rounds.all_first": False,
    "local.steps": 2,
    "local.batch_size": 0,
    "local.step_size": 1.0,
    "algorithm.name": "scaffold",
    "privacy.mechanism": "sound",
    "privacy.epsilon": 2.0,
    "flower.test": "none",
    "flower.nodes": 2,
    "flower.wait": 0.5,
    "flower.timeout": 0.3,
}


class OneProcess(Grid):
    """Nodes by id; what a test puts into `spoil` happens to their replies."""

    def __init__(self, folder: Path, nodes: dict[int, int]) -> None:
        import numpy as np

        self.nodes: dict[int, Context] = {}
        self.folder = folder
        (folder / "policy.toml").write_text(PERMISSIVE)
        for client in range(3):
            features, labels = own_arrays(client)
            np.savez(folder / f"{client}.npz", features=features, labels=labels, classes=CLASSES)
        for node, client in nodes.items():
            self.connect(node, client)
        self.spoil: dict[int, Callable[[Message, Message], list[Message]]] = {}
        self.replies: list[Message] = []

    def connect(self, node: int, client: int) -> None:
        own = {"client": client, "state-dir": str(self.folder / f"client-{client}"), "policy": str(self.folder / "policy.toml")}
        own["data-path"] = str(self.folder / f"{client}.npz")
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
    summary = train(grid, SETTINGS | {"flower.out": str(tmp_path / "run")})
    assert summary["messages_used"] == 9
    assert "client 2 is there (31 examples)" in caplog.text
    assert "round 3 of 3: 3 messages used, 0 missing" in caplog.text
    again = train(grid, SETTINGS | {"flower.out": str(tmp_path / "run")})
    assert again == summary, "a finished run is left alone"


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
    grid = OneProcess(tmp_path, {11: 0, 12: 1, 13: 2})
    grid.spoil[11] = BAD[name]
    summary = train(grid, SETTINGS | {"flower.out": str(tmp_path / "run"), "rounds.total": 1})
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
    summary = train(grid, SETTINGS | {"flower.out": str(tmp_path / "run")})
    assert "client 0 is connected already; node 21 is kept in reserve" in caplog.text
    # lost in round 1; in round 2 the newcomer was met and in reserve while the silent one was asked once more
    assert summary["messages_used"] == 7
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["missing"] for row in rows] == [1, 1, 0]


def test_too_few_nodes_end_the_run_with_the_way_out(tmp_path: Path) -> None:
    grid = OneProcess(tmp_path, {11: 0})
    with pytest.raises(UserError, match=r"1 of 2 clients are connected after 0\.5 s"):
        train(grid, SETTINGS | {"flower.out": str(tmp_path / "run")})
    grid.connect(12, 1)
    assert train(grid, SETTINGS | {"flower.out": str(tmp_path / "run")})["rounds"] == 3
