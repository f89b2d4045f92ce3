"""A hostile server's requests, and two clients whose data differ in one person's rows: all that can be seen must be equal.

`tests/flower/test_flower_hostile.py` runs some thousands of pairs, `benchmarks/fuzz_node.py` a million. Everything is drawn
from a `random.Random`, which in the tests is one of hypothesis.
"""

import math
import shutil
import struct
import tempfile
import zlib
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import tomlkit

from fedpdm.compression.wire import encode, make_part
from fedpdm.config import load_config
from fedpdm.data.schema import Ignored, Image, Number, Schema, Text
from fedpdm.engines.flower.client.client import Node, answer, introduce
from fedpdm.engines.flower.client.identity import KEY_FILE
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.client.store import open_store
from fedpdm.engines.flower.job import job_toml, make_job, parse_job
from fedpdm.engines.flower.protocol import REFUSALS, Introduction, Meeting, Reply, Request
from fedpdm.errors import ConfigError
from fedpdm.privacy.ledger import Ledger

FEATURES, CLASSES, SLOTS, ROUNDS = 3, 2, 6, 40

POLICY = """
[budget]
epsilon = 1000.0
delta = 1e-5

[jobs]
take = "within-limits"

[allow]
algorithms = ["fedpdm", "fedavg"]
mechanisms = ["sound"]
noise = ["secure"]
modes = ["contractive", "linearised"]
maps = ["raw", "fourier", "hashed"]
bases = ["none", "private"]
encoders = []
map_seeds = [0]

[limits]
noise_multiplier_min = 0.5
participations_max = 40
rounds_max = 40
steps_max = 10
step_size_max = 4.0
clip_max = 1.0
radius_max = 1.0
slots_max = 10
fourier_count_max = 8
fourier_bandwidth_min = 0.1
fourier_bandwidth_max = 10.0
basis_size_max = 2
evaluations_max = 40
evaluation_noise_multiplier_min = 0.1
standard_noise_multiplier_min = 0.5
interval_noise_multiplier_min = 0.5
jobs_max = 6
jobs_per_day = 100
introductions_per_day = 100000
requests_per_day = 100000
refusals_per_day = 100000
bytes_per_day = 100000000
disk_bytes_max = 100000000
"""

_BASE = ["data.name=own", "data.basis=none", "data.clients=2", f"rounds.total={ROUNDS}", "rounds.participants=2"]
_BASE += ["local.steps=2", "local.step_size=1.0", "algorithm.rho=0.1", "privacy.epsilon=40.0", "compression.values=float32"]
_MORE_NOISE = ["privacy.epsilon=12.0"]
CONFIGS = (
    load_config("demo", [*_BASE, "data.features=raw", "data.scaling=centred"]),
    load_config("demo", [*_BASE, "data.features=fourier", "data.fourier_count=4", "algorithm.name=fedavg"]),
    load_config("demo", [*_BASE, "data.features=raw", "data.standardise=true", "data.scaling=", "data.radius="]),
    load_config("demo", [*_BASE, "data.features=raw", "data.scaling=bounded", "data.basis=private", "data.basis_size=2"]),
    load_config(
        "demo",
        [*_BASE, "data.features=hashed", "data.hashed_count=4", "data.clients=3", "metrics.intervals=true", *_MORE_NOISE],
    ),
)
_NAMES = [f"class {k}" for k in range(CLASSES)], [f"x{j}" for j in range(FEATURES)]
EVALUATION = {"share": 0.4, "every": 1, "epsilon": 100.0}
TABLE = Schema(  # the same file, read as a table
    label="labels",
    classes=["0", "1"],
    columns={f"features{j}": Number(low=-2, high=2, missing_column=j == 0) for j in range(FEATURES)},
)
NOTES = Schema(label="labels", classes=["0", "1"], columns={"features0": Number(low=-2, high=2), "note": Text(length=9)})
PHOTOS = Schema(label="labels", classes=["0", "1"], columns={"photo": Image(shape=[1, 2]), "note": Ignored()})
PERSONS = TABLE.model_copy(update={"unit_column": "person"})
JOBS = tuple(make_job(config, SLOTS, *_NAMES, evaluation=EVALUATION) for config in CONFIGS[:2])
JOBS += (make_job(CONFIGS[4], SLOTS, NOTES.classes, NOTES.feature_names, table=NOTES.model_dump(), evaluation=EVALUATION),)
JOBS += (  # means before training, and a person is the unit
    make_job(
        CONFIGS[2],
        SLOTS // 2,
        PERSONS.classes,
        PERSONS.feature_names,
        table=PERSONS.model_dump(),
        evaluation=EVALUATION,
        unit_rows=2,
    ),
)
JOBS += (make_job(CONFIGS[3], SLOTS, PHOTOS.classes, PHOTOS.feature_names, table=PHOTOS.model_dump(), evaluation=EVALUATION),)
WIDTHS = tuple(job.shape[1] for job in JOBS)
TEXTS = tuple(job_toml(job) for job in JOBS)


class Row(NamedTuple):
    cells: list[float]
    label: float
    person: int
    note: str
    photo: list[list[float]]


class Pair:
    """Two clients that hold the same jobs; the second lacks the rows of one person of the first."""

    def __init__(self, rows: list[Row], lacking: int) -> None:
        place = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="fedpdm-pair-", dir=place))
        self.nodes = [self._node(0, rows), self._node(1, [row for row in rows if row.person != lacking])]
        self.last = [dict.fromkeys((job.digest for job in JOBS), "") for _ in self.nodes]

    def _node(self, number: int, rows: list[Row]) -> Node:
        folder = self.folder / str(number)
        folder.mkdir()
        (folder / "policy.toml").write_text(POLICY)
        features = np.array([row.cells for row in rows], np.float32).reshape(len(rows), FEATURES)
        labels, persons = np.array([row.label for row in rows], np.float64), np.array([row.person for row in rows], np.int64)
        notes = np.array([row.note for row in rows], "U9")
        photos = np.array([row.photo for row in rows], np.float32).reshape(len(rows), 1, 2)
        np.savez(folder / "rows.npz", features=features, labels=labels, person=persons, note=notes, photo=photos)
        node = Node(NodeSource(0, folder / "rows.npz", None, None), folder / "state", folder / "policy.toml")
        (folder / "state" / "jobs").mkdir(parents=True)
        for job, text in zip(JOBS, TEXTS, strict=True):
            (folder / "state" / "jobs" / f"{job.digest}.toml").write_text(text)
        (folder / "state" / KEY_FILE).touch(mode=0o600)
        (folder / "state" / KEY_FILE).write_bytes(bytes(range(32)))  # a key is drawn before there are rows
        with open_store(folder / "state"):  # as `approve` does: from here on the folder is private
            pass
        return node

    def ask(self, asked: "Meeting | Request") -> list[Any]:
        """Return everything visible in both answers. An acknowledgement of "last" names each client's own last message."""
        seen = []
        for node, last in zip(self.nodes, self.last, strict=True):
            if isinstance(asked, Meeting):
                seen.append(_seen(introduce(node, asked)))
                continue
            own = asked._replace(accepted=last.get(asked.job, "")) if asked.accepted == "last" else asked
            reply = answer(node, own)
            if reply.vectors and own.task != "evaluate":
                last[own.job] = reply.message
            seen.append(_seen(reply))
        return seen

    def kept(self) -> list[Any]:
        """Return the records of both clients on disk: files with sizes and modes, the ledger, counts, refusals."""
        return [_kept(node) for node in self.nodes]

    def close(self) -> None:
        shutil.rmtree(self.folder)


def _seen(said: Introduction | Reply) -> tuple[Any, ...]:
    """All that a server sees of an answer but the noised numbers themselves."""
    assert said.reason == (REFUSALS[said.refused] if said.refused else "")
    assert said.refused != "node", "nothing is wrong with these clients: if all fail, all look alike"
    if isinstance(said, Introduction):
        return said
    return said._replace(message=str(len(said.message)), vectors=b""), len(said.vectors)


class Kept(NamedTuple):
    files: list[tuple[str, int, int]]
    spends: list[tuple[Any, ...]]
    messages: list[tuple[Any, ...]]
    refusals: list[tuple[Any, ...]]


def _kept(node: Node) -> Kept:
    files = []
    for path in sorted(node.state_dir.rglob("*")):
        status = path.stat()
        files.append((str(path.relative_to(node.state_dir)), status.st_size if path.is_file() else 0, status.st_mode & 0o777))
    spends: list[tuple[Any, ...]] = []
    if (node.state_dir / "ledger.sqlite").exists():
        with Ledger(node.state_dir / "ledger.sqlite") as ledger:
            # what rounding can add to a sensitivity depends on the released dual, in digits far behind these
            spends = [
                (row.job, row.round, f"{row.sensitivity:.4g} {row.sigma:.4g}", row.mechanism_note) for row in ledger.rows()
            ]
    if not (node.state_dir / "state.sqlite").exists():
        return Kept(files, spends, [], [])
    with open_store(node.state_dir) as store:
        messages = [(kept.job, kept.round, kept.status, kept.size) for kept in store.messages()]
        refusals = [(job, t, name, len(reason)) for _, job, t, name, reason in store.refusals()]
    return Kept(files, spends, messages, refusals)


# Numbers that overflow, vanish, or are none.
NUMBERS = (0.0, 1.0, -0.5, 1e-45, 1e-300, 9e5, 1e7, 3e38, 1e308, math.inf, -math.inf, math.nan)
CELLS = (0.0, 0.3, -1.0, 2.0, 1e-42, 3e38, -3e38, math.inf, math.nan)
NOTES_SEEN = ("", "a", "a a b", "7.0", "nan", "\ud800", "\0\0", "\N{SNOWMAN}" * 9, "=,;\n")
LABELS = (0.0, 1.0, 1.0, 7.0, -1.0, 0.5, math.nan)
DIGESTS = tuple(job.digest for job in JOBS)


def own_rows(draw: Random) -> list[Row]:
    """A client's rows: one or more, up to two beyond the slots. Persons have one row or more, up to all of them."""
    count = draw.randint(1, SLOTS + 2)
    people = draw.choice([1, SLOTS // 2, 100])
    return [
        Row(
            [draw.choice(CELLS) for _ in range(FEATURES)],
            draw.choice(LABELS),
            draw.randint(1, people),
            draw.choice(NOTES_SEEN),
            [[draw.choice(CELLS), draw.choice(CELLS)]],
        )
        for _ in range(count)
    ]


def neighbours(draw: Random) -> Pair:
    """A pair of clients whose data differ in one person."""
    rows = own_rows(draw)
    return Pair(rows, draw.choice(rows).person)


class Long(str):
    """Ten million letters that are not printed with a failure."""

    def __repr__(self) -> str:
        return "HUGE"


HUGE = Long("x" * 10**7)
BAD_NAMES = ("", "0" * 63, "0" * 64, "G" * 64, "../../state", HUGE, "\ud800" * 64, "a/b", "\0" * 64)
BAD_ROUNDS = (-1, 2**31 - 1, 2**31, 10**400, -(10**30), 2**63, True, "3", None, 1.5)


def vectors(draw: Random, columns: int) -> bytes:
    """A model: of the right form with odd numbers, checksum and all, or garbage."""
    kind = draw.choice(["plain", "plain", "odd", "large", "size", "garbage", "empty"])
    if kind == "empty":
        return b""
    if kind == "garbage":
        return bytes(draw.randint(0, 255) for _ in range(draw.randint(0, 64)))
    values = np.full((CLASSES, columns + (kind == "size")), {"large": 9e5}.get(kind, 0.1), np.float32)
    data = bytearray(encode([make_part(values, np.ones(values.shape, bool))]))
    if kind == "odd":
        with np.errstate(over="ignore"):
            data[-4:] = struct.pack("<f", np.float32(draw.choice(NUMBERS)))
        data[8:12] = struct.pack("<I", zlib.crc32(bytes(data[12:]), zlib.crc32(bytes(data[:8]))))
    return bytes(data)


def request(draw: Random) -> Request:
    """A request for work: for a job that is held or not, in a round that is or is not, with some model."""
    task = draw.choice(["train", "train", "train", "evaluate", "standardise", "intervals"])
    accepted = draw.choice(["last", "last", "last", "", "0" * 32])
    number = draw.randint(0, len(JOBS) - 1)
    columns = WIDTHS[number] if draw.random() < 0.7 else draw.choice(WIDTHS)
    if draw.random() < 0.8:  # as the job has it
        means = standard(draw, number) if JOBS[number].first_release and task != "standardise" else b""
    else:
        means = draw.choice([b"means", b"", standard(draw, draw.choice([3, 4]))])
    due = {"standardise": 0, "intervals": ROUNDS - 1}  # the only round of this task
    when = due[task] if task in due and draw.random() < 0.5 else draw.randint(0, ROUNDS)
    return Request(task, DIGESTS[number], when, 0, accepted, vectors(draw, columns), means)


def standard(draw: Random, number: int) -> bytes:
    """What rows are to be mapped by, hostile or plausible: of the right number, or not."""
    release = JOBS[number].first_release
    count = (release.sent_size if release else 1) - draw.choice([0, 0, 0, 0, 1])
    values = np.array([draw.choice([0.0, 0.3, 0.5, 1.0, -1.0, 1e-30, 1e5]) for _ in range(count)], np.float32)
    return encode([make_part(values, np.ones(count, bool))])


BAD_FIELDS: dict[str, tuple[Any, ...]] = {
    "job": BAD_NAMES,
    "round": BAD_ROUNDS,
    "client": BAD_ROUNDS,
    "task": ("", "query", "\ud800", None),
    "accepted": ("0" * 31, "../x", "Z" * 32, "\ud800", None, HUGE),
    "vectors": (None, "text", 3),
    "standard": (None, "text", 3),
}
BAD_OFFERS = ("", Long("x = [" * 2000), Long("[" * 5000), "\ud800", Long("a" + ".a" * 10**5), Long("x = " + "9" * 10**4))


def malformed(draw: Random) -> Any:
    """A request with a field that no server of ours would send, or a meeting with one."""
    if draw.choice([False, True]):
        return Meeting(draw.choice(BAD_NAMES), draw.choice(BAD_OFFERS))
    field = draw.choice(sorted(BAD_FIELDS))
    return Request("train", draw.choice(DIGESTS), 0, 0, "", b"")._replace(**{field: draw.choice(BAD_FIELDS[field])})


HOSTILE: dict[str, dict[str, list[Any]]] = {
    "data": {
        "fourier_bandwidth": [1e-38, 1e38],
        "fourier_count": [10**7, 5],
        "radius": [1e300, 0.5],
        "features_seed": [3],
        "hashed_count": [2**20, 5],
    },
    "rounds": {"total": [10**400, 2**31, 3]},
    "local": {"steps": [10**9, 3], "step_size": [1e308, 0.5], "tolerance": [1e-3], "batch_size": [2]},
    "privacy": {"epsilon": [1e300, 1e9], "clip": [1e-300, 0.25], "participations": [10**12], "mode": ["every-step"]},
    "compression": {"uplink": [0.5]},
}


def offer(draw: Random) -> Meeting:
    """A job that the server makes up: its settings are hostile, or its digest is not its own, or it is fine."""
    number = draw.randint(0, len(JOBS) - 1)
    section = draw.choice(sorted(HOSTILE))
    key = draw.choice(sorted(HOSTILE[section]))
    text = _changed(number, section, key, draw.choice(HOSTILE[section][key]))
    return Meeting(draw.choice([JOBS[number].digest[::-1], "0" * 64, _digest(text)]), text)


@lru_cache(maxsize=1000)
def _changed(number: int, section: str, key: str, value: Any) -> str:
    document = tomlkit.parse(TEXTS[number])
    document["settings"][section][key] = value  # type: ignore[index]
    return tomlkit.dumps(document)


@lru_cache(maxsize=1000)
def _digest(text: str) -> str:
    """The digest of a job that can be read; of another one nothing is known."""
    try:
        return parse_job(text).digest
    except ConfigError:
        return "0" * 64


def known(draw: Random) -> Meeting:
    """A meeting about a job that is held."""
    return Meeting(draw.choice(DIGESTS), challenge=draw.choice(["", "0" * 32, "ab" * 16, "word"]))


def hostile(draw: Random) -> Any:
    """Any request that a hostile server may send."""
    return draw.choice([malformed, malformed, malformed, request, request, known, offer])(draw)
