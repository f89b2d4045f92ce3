"""The server: the replies that it uses, and the state that survives its process."""

import json
import math
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from flower_kit import CLASSES, FEATURES, PERMISSIVE, coordinator, job_of, make_nodes, one_round

from fedpdm.compression.wire import encode, make_part
from fedpdm.engines.flower.client.client import answer
from fedpdm.engines.flower.job import job_toml
from fedpdm.engines.flower.protocol import Introduction, Meeting, Refused, Reply, Request, pack, unpack
from fedpdm.engines.flower.server.app import read_run_config
from fedpdm.errors import ConfigError, UserError

MODEL = np.linspace(-1, 1, CLASSES * FEATURES, dtype=np.float32).reshape(CLASSES, FEATURES)


# Without noise a made-up message may be that of an honest client.
PLAIN = ("privacy.mechanism=none", "privacy.epsilon=", "privacy.clip=")


def message(values: np.ndarray = MODEL) -> bytes:
    return encode([make_part(values, np.ones(values.shape, bool))])


def poisoned(value: float) -> bytes:
    """A well-formed message, checksum and all, that holds this value."""
    data = bytearray(message())
    data[-4:] = struct.pack("<f", value)
    data[8:12] = struct.pack("<I", zlib.crc32(bytes(data[12:]), zlib.crc32(bytes(data[:8]))))
    return bytes(data)


@pytest.fixture
def server(tmp_path: Path):
    return coordinator(tmp_path / "run", job_of(*PLAIN))


BAD = {
    "malformed": lambda r: Reply.of(r, b"\x80\x04pickle"),
    "cut": lambda r: Reply.of(r, message()[:-3]),
    "damaged": lambda r: Reply.of(r, message()[:-1] + b"\x00"),
    "renamed": lambda r: Reply.of(r, message())._replace(message="0" * 32),
    "not a number": lambda r: Reply.of(r, poisoned(math.nan)),
    "infinite": lambda r: Reply.of(r, poisoned(math.inf)),
    "huge": lambda r: Reply.of(r, poisoned(1e20)),
    "of another round": lambda r: Reply.of(r._replace(round=7), message()),
    "of another job": lambda r: Reply.of(r._replace(job="0" * 64), message()),
    "for another client": lambda r: Reply.of(r._replace(client=1), message()),
    "of another size": lambda r: Reply.of(r, message(MODEL[:, :-1])),
    "of two vectors": lambda r: Reply.of(r, encode([make_part(MODEL, np.ones(MODEL.shape, bool))] * 2)),
    "refused": lambda r: Reply(r.job, r.round, r.client, refused="budget", reason="It is used up."),
    "failed": lambda r: Refused("node", "The node was lost."),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_reply_is_dropped_by_name_and_leaves_no_trace_in_the_model(name: str, tmp_path: Path) -> None:
    models = []
    for replies in ([1, 2], [0, 1, 2]):
        server = coordinator(tmp_path / str(len(replies)), job_of(*PLAIN))
        asked = server.requests(server.chosen())
        said = [(i, Reply.of(asked[i], message(MODEL * (i + 1)))) for i in (1, 2)]
        if 0 in replies:
            said.insert(0, (0, BAD[name](asked[0])))
        row, dropped = server.take(asked, said)
        models.append(server.model)
        assert row["participants"] == 2
        assert len(dropped) == (0 in replies)
    assert dropped[0].startswith("client 0: ")
    assert np.isfinite(server.model).all()
    np.testing.assert_array_equal(models[0], models[1])
    names = {"refused": "budget", "failed": "node", "for another client": "impostor", "not a number": "not-a-number"}
    assert names.get(name, "") in dropped[0]


def test_duplicates_and_strangers_are_dropped(server) -> None:
    asked = server.requests([0, 1])
    twice = [(0, Reply.of(asked[0], message())), (0, Reply.of(asked[0], message(2 * MODEL)))]
    stranger = [(2, Reply.of(asked[1]._replace(client=2), message())), (-1, Refused("malformed", "what?"))]
    row, dropped = server.take(asked, twice + stranger)
    assert row["participants"] == 1
    assert [line.split(": ")[1] for line in dropped] == ["duplicate", "unasked", "malformed"]


def test_a_message_that_was_used_is_not_used_again(server) -> None:
    asked = server.requests([0, 1, 2])
    first = Reply.of(asked[0], message())
    server.take(asked, [(0, first)])
    again = server.requests([0, 1, 2])
    assert again[0].accepted == first.message
    assert again[1].accepted == ""
    with pytest.raises(UserError, match="The first refusal: client 0: replayed"):
        server.take(again, [(0, first)])


def test_a_round_without_replies_is_no_round(server) -> None:
    before = server.model.copy()
    with pytest.raises(UserError, match="Round 1 got 0 messages that can be used, of 3 clients; it takes 1"):
        server.take(server.requests([0, 1]), [])
    np.testing.assert_array_equal(server.model, before)
    assert server.round == 0


def test_a_killed_server_goes_on_from_its_checkpoint_to_the_same_model(tmp_path: Path) -> None:
    """kill -9 after a round's requests were answered and before it was finished: the same requests get the same bytes."""
    job = job_of("rounds.total=3", "algorithm.server_rule=dual-memory")
    nodes = make_nodes(tmp_path, job=job)
    server = coordinator(tmp_path / "run", job)
    one_round(server, nodes)
    asked = server.requests(server.chosen())
    lost = [answer(nodes[i], request) for i, request in asked.items()]
    shutil.copytree(tmp_path / "run", tmp_path / "left behind")
    again = coordinator(tmp_path / "left behind", job)
    assert (again.round, again.job) == (1, server.job)
    assert again.requests(again.chosen()) == asked
    assert [answer(nodes[i], request) for i, request in asked.items()] == lost
    server.take(asked, list(zip(asked, lost, strict=True)))
    again.take(asked, list(zip(asked, lost, strict=True)))
    np.testing.assert_array_equal(server.model, again.model)
    one_round(again, nodes)
    assert again.finish()["rounds"] == 3
    assert [row["round"] for row in again.folder.rows()] == [1, 2, 3]


WRITE_THEN_DIE = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import flower_kit as kit
from fedpdm.engines.flower.protocol import Reply
from test_flower_server import message
from fedpdm.engines.flower.job import read_job
server = kit.coordinator(Path(sys.argv[1]), read_job(Path(sys.argv[3])))
while True:
    asked = server.requests([0, 1, 2])
    server.take(asked, [(i, Reply.of(r, message())) for i, r in asked.items()])
    print(server.round, flush=True)
"""


def test_kill_minus_nine_while_the_server_writes(tmp_path: Path) -> None:
    job = job_of("rounds.total=200", *PLAIN)
    (tmp_path / "job.toml").write_text(job_toml(job))
    command = [sys.executable, "-c", WRITE_THEN_DIE, str(tmp_path / "run"), str(Path(__file__).parent)]
    command.append(str(tmp_path / "job.toml"))
    for least in (2, 4):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= least:
                break
        process.kill()
        process.wait()
        process.stdout.close()
        server = coordinator(tmp_path / "run", job)
        assert server.round >= least
        assert [row["round"] for row in server.folder.rows()] == list(range(1, server.round + 1))


def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    coordinator(tmp_path / "run", job_of())
    with pytest.raises(ConfigError, match="another job"):
        coordinator(tmp_path / "run", job_of())


def test_a_full_disk_ends_the_round_before_its_checkpoint(tmp_path: Path, server) -> None:
    asked = server.requests([0])
    (tmp_path / "run" / "checkpoint.safetensors.partial").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        server.take(asked, [(0, Reply.of(asked[0], message()))])


def test_the_run_folder_says_what_noise_it_was_and_promises_nothing_for_simulated_noise(tmp_path: Path) -> None:
    for noise, promised in (("secure", True), ("simulation", False)):
        job = job_of("rounds.total=1", noise=noise)
        nodes = make_nodes(tmp_path, PERMISSIVE, job=job)
        server = coordinator(tmp_path / noise, job)
        one_round(server, nodes)
        summary = server.finish()
        assert json.loads((tmp_path / noise / "manifest.json").read_text())["noise"].startswith(noise[:6])
        assert (summary["epsilon"] is not None) == promised
        assert summary["guarantee"].startswith("Differential privacy" if promised else "Nothing is guaranteed")


def test_records_survive_the_way_and_nothing_else_does() -> None:
    request = Request("train", "0" * 64, 3, 1, "abc", message())
    for value in (request, Reply.of(request, message()), Introduction(1), Meeting("0" * 64, "text")):
        assert unpack(type(value), pack(value)) == value
    records = pack(request)
    with pytest.raises(Refused, match="malformed"):
        unpack(Reply, records)
    records["fedpdm"]["round"] = "3"  # type: ignore[index]
    with pytest.raises(Refused, match="round differ"):
        unpack(Request, records)
    records["fedpdm"]["protocol"] = 1  # type: ignore[index]
    with pytest.raises(Refused, match="protocol 4"):
        unpack(Request, records)
    del records["fedpdm"]
    with pytest.raises(Refused, match="another app"):
        unpack(Request, records)


def test_the_run_config_names_a_job_and_says_what_is_wrong(tmp_path: Path) -> None:
    job = job_of()
    path = tmp_path / "job.toml"
    path.write_text(job_toml(job))
    named = {"flower.job": str(path), "flower.out": "runs/x"}
    read, options = read_run_config(named | {"flower.timeout": 5, "flower.data_dir": ""})
    assert (read.digest, options.timeout) == (job.digest, 5.0)
    for wrong, words in (
        (named | {"rounds.total": 7}, "rounds.total: the settings of the training are in the job's file"),
        ({"flower.job": str(path)}, "flower.out"),
        (named | {"flower.loud": "x"}, "flower.loud"),
        (named | {"flower.job": str(tmp_path / "none")}, "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_run_config(wrong)
