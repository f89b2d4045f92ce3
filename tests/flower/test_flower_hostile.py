"""A hostile server: nothing that it sees depends on a row, unless it is noised and recorded."""

import os
import stat
import tracemalloc
from pathlib import Path
from random import Random

import numpy as np
import polars as pl
import pytest
from flower_kit import (
    CLASSES,
    FEATURES,
    POLICY,
    configure,
    first_request,
    give,
    job_of,
    make_nodes,
    own_arrays,
    refused,
    spends,
)
from hostile_kit import JOBS, ROUNDS, TEXTS, hostile, neighbours
from hostile_kit import POLICY as ANY_JOB
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import fedpdm.data.encoders as encoders
import fedpdm.engines.flower.client.rows as rows_module
from fedpdm.engines.flower.client import client
from fedpdm.engines.flower.client.client import Node, answer, introduce
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.client.rows import read_rows
from fedpdm.engines.flower.client.store import MOST_REFUSALS, open_store
from fedpdm.engines.flower.job import job_toml, make_job
from fedpdm.engines.flower.protocol import REFUSALS, Meeting, Request
from fedpdm.errors import ConfigError

PAIRS, IN_ONE = 10_000, 50


@settings(
    max_examples=PAIRS // IN_ONE,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=True,
    phases=[Phase.generate],
)
@given(st.randoms(use_true_random=False))
def test_neighbours_cannot_be_told_apart(draw: Random) -> None:
    """Two data sets that differ in one person: for every request, codes, texts, sizes, files and ledgers are equal."""
    pair = neighbours(draw)
    try:
        for _ in range(IN_ONE):
            seen = pair.ask(hostile(draw))
            assert seen[0] == seen[1]
        kept = pair.kept()
        assert kept[0] == kept[1]
        for one in kept:
            assert sorted(spend[:2] for spend in one.spends) == sorted(message[:2] for message in one.messages), (
                "all were paid for"
            )
            assert all(mode & 0o077 == 0 for _, _, mode in one.files), "private"
    finally:
        pair.close()


def first_answers(folder: Path, job, odd: np.ndarray, label: float = 0.0) -> list:
    """Return everything visible in the first answers of two clients, one of which has an odd row more."""
    seen = []
    for name in ("with", "without"):
        (folder / name).mkdir()
        node = make_nodes(folder / name, job=job)[1]
        features, labels = own_arrays(1)
        if name == "with":
            features, labels = np.vstack([features, odd]), np.append(labels.astype(float), label)
        np.savez(folder / name / "own-1.npz", features=features, labels=labels)
        reply = answer(node, first_request(folder / name / "run", job, 1))
        seen.append((reply.refused, reply.reason, len(reply.vectors), [(row.sensitivity, row.sigma) for row in spends(node)]))
    return seen


@pytest.mark.parametrize(
    ("scaling", "odd", "label"),
    [("centred", 3e38, 0.0), ("none", np.nan, 0.0), ("none", np.inf, 1.0), ("unit", 0.5, 99.0), ("unit", 0.5, np.nan)],
)
def test_a_row_that_overflows_or_is_malformed_is_an_empty_slot(scaling: str, odd: float, label: float, tmp_path: Path) -> None:
    job = job_of(f"data.scaling={scaling}")
    row = np.full((1, FEATURES), odd, np.float32)
    row[0, 0] = -row[0, 0]
    one, other = first_answers(tmp_path, job, row, label)
    assert one == other
    assert one[0] == ""


def test_a_bandwidth_at_which_rows_overflow_is_no_setting_of_a_job() -> None:
    """The cosines of a projection over 1e-38 are NaN for some rows: refusals told which, one bit at a time."""
    for wrong, key in (("data.fourier_bandwidth=1e-38", "bandwidth"), ("data.fourier_count=10000000", "fourier_count")):
        with pytest.raises(ConfigError, match=key):
            job_of("data.features=fourier", wrong)
    for wrong, key in (
        ("data.radius=1e300", "radius"),
        ("local.steps=1000000000", "steps"),
        ("privacy.epsilon=1e9", "epsilon"),
    ):
        with pytest.raises(ConfigError, match=key):
            job_of(wrong)


def test_an_introduction_reads_no_row(tmp_path: Path) -> None:
    job = job_of()
    node = make_nodes(tmp_path, job=job)[0]
    (tmp_path / "own-0.npz").write_bytes(b"this is no file of arrays")
    said = introduce(node, Meeting(job.digest))
    assert (said.client, said.refused, said.reason) == (0, "", "")
    assert refused(answer(node, first_request(tmp_path / "run", job))) == "node"


def test_a_line_that_is_malformed_spoils_no_other(tmp_path: Path) -> None:
    """An open quote, too many fields, bytes that are no text, words for numbers: each is one empty slot."""
    from fedpdm.data.schema import Category, Number, Schema

    schema = Schema(
        label="ill", classes=["no", "yes"], columns={"age": Number(low=0, high=100), "sex": Category(levels=["f", "m"])}
    )
    good = ["31,f,no", '62,"m",yes', "8,f,no"]
    odd = ['"4,f,no', "1,2,3,4", "many,f,no", "7,f,perhaps", "7", "\x00,\x00,\x00", "inf,f,no", "7,f,"]
    for place, line in enumerate(odd):
        path = tmp_path / f"{place}.csv"
        path.write_text("\n".join(["age,sex,ill", good[0], line, *good[1:]]) + "\n")
        found = read_rows(path, schema)
        assert found.good.tolist() == [True, False, True, True], line
        plain = tmp_path / "plain.csv"
        plain.write_text("\n".join(["age,sex,ill", *good]) + "\n")
        expected = read_rows(plain, schema)
        np.testing.assert_array_equal(found.features[found.good], expected.features)
        np.testing.assert_array_equal(found.labels[found.good], expected.labels)
    path = tmp_path / "latin.csv"
    path.write_bytes(b"age,sex,ill\n31,f,no\n5,\xff\xfe,yes\n")
    assert read_rows(path, schema).good.tolist() == [True, True], "an unknown word has no indicator"
    svm = tmp_path / "rows.svm"
    svm.write_text("1 1:0.5\nbroken\n0 2:7 9:1\n1 1:x\n")
    numbers = Schema(label="label", classes=["0", "1"], columns={"x1": Number(low=0, high=1), "x2": Number(low=0, high=10)})
    found = read_rows(svm, numbers)
    assert found.good.tolist() == [True, False, True, False]
    assert rows_module.__doc__


def test_files_are_private_whatever_the_umask_and_whoever_made_the_folder(tmp_path: Path) -> None:
    job = job_of()
    before = os.umask(0)
    try:
        node = make_nodes(tmp_path, job=job)[0]
        node.state_dir.chmod(0o755)
        (node.state_dir / "state.sqlite").touch(0o644)
        assert not refused(answer(node, first_request(tmp_path / "run", job)))
    finally:
        os.umask(before)
    for path in (node.state_dir, *node.state_dir.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_deleted_row_is_in_no_file_after_the_next_request(tmp_path: Path) -> None:
    jobs = [job_of(), job_of("local.steps=3")]
    node = make_nodes(tmp_path, job=jobs[0])[0]
    give(node, *jobs)
    for job in jobs:
        assert not refused(answer(node, first_request(tmp_path / job.id, job)))
    features, labels = own_arrays(0)
    secret = features[5].tobytes()

    def found() -> bool:
        return any(secret in path.read_bytes() for path in node.state_dir.rglob("*") if path.is_file())

    assert found(), "it was kept to start quickly"
    np.savez(tmp_path / "own-0.npz", features=np.delete(features, 5, axis=0), labels=np.delete(labels, 5))
    introduce(node, Meeting(jobs[0].digest))
    assert not found()


def test_a_broken_cache_is_made_again(tmp_path: Path) -> None:
    job = job_of()
    node = make_nodes(tmp_path, job=job)[0]
    request = first_request(tmp_path / "run", job)
    reply = answer(node, request)
    (cache,) = (node.state_dir / "examples").glob("*.npz")
    for content in (b"", b"PK\x03\x04 broken", cache.read_bytes()[:-200]):
        cache.write_bytes(content)
        request = request._replace(round=request.round + 1, accepted=reply.message)
        reply = answer(node, request._replace(round=min(request.round, 2)))
        assert reply.refused in ("", "repeat")
    assert len(list((node.state_dir / "examples").glob("*.npz"))) == 1


def test_whatever_goes_wrong_at_the_node_has_one_code_and_no_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of()
    request = first_request(tmp_path / "run", job)
    cases = {
        "no file": lambda node: node.source.path.unlink(),
        "garbage": lambda node: node.source.path.write_bytes(b"secret words"),
        "other columns": lambda node: np.savez(node.source.path, features=np.zeros((3, 99)), labels=np.zeros(3)),
        "no policy": lambda node: node.policy.unlink(),
        "a policy that is none": lambda node: node.policy.write_text("[budget]\nepsilon = -1"),
        "a broken store": lambda node: (node.state_dir / "state.sqlite").write_bytes(b"no database" * 1000),
        "a panic of compiled code": lambda _: monkeypatch.setattr(client, "load_examples", _panic),
        "a job that is no text": lambda node: (node.state_dir / "jobs" / f"{job.digest}.toml").write_bytes(b"\xff\xfe"),
    }
    for name, hurt in cases.items():
        (tmp_path / name).mkdir()
        node = make_nodes(tmp_path / name, job=job)[0]
        hurt(node)
        assert refused(answer(node, request)) == "node", name
        assert not spends(node)
        monkeypatch.undo()


def _panic(*_: object) -> None:
    raise pl.exceptions.PanicException("a secret row")  # not an Exception of Python


HOSTILE_FIELDS = {
    "a name of ten megabytes": {"job": "x" * 10_000_000},
    "a path": {"job": "../../../etc/passwd"},
    "no name": {"job": ""},
    "a surrogate": {"job": "\ud800" * 64},
    "a round beyond 32 bits": {"round": 2**31},
    "a negative round": {"round": -1},
    "a round of 400 digits": {"round": 10**400},
    "an acknowledgement of ten megabytes": {"accepted": "0" * 10_000_000},
}


@pytest.mark.parametrize("name", HOSTILE_FIELDS)
def test_absurd_fields_are_malformed_and_cost_nothing(name: str, tmp_path: Path) -> None:
    job = job_of()
    node = make_nodes(tmp_path, job=job)[0]
    before = _size(node.state_dir)
    reply = answer(node, Request("train", job.digest, 0, 0, "", b"")._replace(**HOSTILE_FIELDS[name]))
    assert refused(reply) == "malformed"
    assert (reply.job, reply.round) == ("", -1), "nothing of it is sent back"
    assert _size(node.state_dir) == before


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_disk_and_memory_stay_bounded_under_introductions_with_changing_settings(tmp_path: Path) -> None:
    """Offers of new jobs, some within the limits: at most the allowed number is stored, and nothing beyond a day's limits."""
    policy = ANY_JOB.replace("jobs_max = 6", "jobs_max = 4").replace("refusals_per_day = 100000", "refusals_per_day = 60")
    policy = policy.replace("introductions_per_day = 100000", "introductions_per_day = 150")
    node = make_nodes(tmp_path, policy)[0]
    config = configure("rounds.total=3", "privacy.epsilon=10", "data.radius=1.0")
    names = [str(k) for k in range(CLASSES)], [f"x{j}" for j in range(FEATURES)]
    tracemalloc.start()
    codes: list[str] = []
    for number in range(250):
        job = make_job(config.model_copy(update={"seed": number}), 6, *names)
        codes.append(introduce(node, Meeting(job.digest, job_toml(job))).refused)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert codes[:4] == [""] * 4
    assert set(codes[4:64]) == {"jobs"}
    assert set(codes[64:]) == {"rate"}
    assert peak < 64 * 2**20
    size = _size(node.state_dir)
    assert size < 2**20
    for _ in range(20):
        assert introduce(node, Meeting("0" * 64, "x")).refused == "rate"
    assert _size(node.state_dir) == size, "beyond the limit nothing is written"


def test_a_job_that_needs_much_memory_is_refused_before_any_is_taken(tmp_path: Path) -> None:
    policy = ANY_JOB.replace("fourier_count_max = 8", "fourier_count_max = 50")
    node = make_nodes(tmp_path, policy)[0]
    config = configure("data.features=fourier", "data.fourier_count=90000", "privacy.epsilon=10")
    job = make_job(config, 6, [str(k) for k in range(CLASSES)], [f"x{j}" for j in range(FEATURES)])
    tracemalloc.start()
    assert introduce(node, Meeting(job.digest, job_toml(job))).refused == "map"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**25


def test_an_offer_makes_a_node_read_no_file_of_the_servers_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job names an encoder by digest and path. The policy must allow the digest before anything is read."""
    node, looked = make_nodes(tmp_path, ANY_JOB.replace('"hashed"', '"onnx"'))[0], []
    monkeypatch.setattr(encoders, "file_digest", lambda path: looked.append(path) or "")
    own = f"data.encoder={tmp_path / 'own-0.npz'}"
    config = configure("data.features=onnx", own, f"data.encoder_digest={'0' * 64}", "privacy.epsilon=10")
    job = make_job(config, 6, [str(k) for k in range(CLASSES)], [f"x{j}" for j in range(FEATURES)])
    assert introduce(node, Meeting(job.digest, job_toml(job))).refused == "map"
    assert not looked


# A line for a text is short, and its bytes are features that have names: 2,000 texts had 200 million of them.
JOB_OF_TEXTS = TEXTS[2] + "".join(f"\n[table.columns.t{k}]\nkind = 'text'\nlength = 100000\n" for k in range(2000))


@pytest.mark.parametrize(
    "offer",
    [
        "a" + ".a" * 500_000 + " = 1",
        "x = {a" + ' . "a"' * 100_000 + " = 1}",
        "['a'" + ".'a'" * 200_000 + "]",
        "x = " + "9" * 1_000_000,
        "a" * 1_000_000,
        '"' * 1_000_000,
        "a." * 19 + " " * 1_000_000,
        JOB_OF_TEXTS,
    ],
    ids=["dotted", "inline", "header", "digits", "word", "quotes", "spaces", "texts"],
)
def test_an_offer_that_takes_long_to_read_is_refused_at_once(offer: str, tmp_path: Path) -> None:
    """A key of 80,000 parts took all memory of a machine: an offer is read in time and memory that its length bounds."""
    node = make_nodes(tmp_path, ANY_JOB)[0]
    tracemalloc.start()
    assert introduce(node, Meeting("0" * 64, offer)).refused == "settings"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**28


def test_the_refusals_that_are_kept_are_few_and_short(tmp_path: Path) -> None:
    node = make_nodes(tmp_path)[0]
    with open_store(node.state_dir) as store:
        from fedpdm.engines.flower.protocol import Refused

        for number in range(MOST_REFUSALS + 50):
            store.note_refusal("0" * 64, number, Refused("node", "x" * 10_000))
        kept = store.refusals()
    assert len(kept) == MOST_REFUSALS
    assert max(len(reason) for *_, reason in kept) < 1000


def test_a_policy_that_takes_any_job_names_all_of_its_limits(tmp_path: Path) -> None:
    from fedpdm.engines.flower.client.policy import load_policy

    path = tmp_path / "policy.toml"
    path.write_text(POLICY + '[jobs]\ntake = "within-limits"\n')
    with pytest.raises(ConfigError, match=r"these are missing: allow\.algorithms.*limits\.disk_bytes_max"):
        load_policy(path)
    path.write_text(ANY_JOB)
    assert load_policy(path).takes_offers


def test_an_answer_is_not_made_beyond_the_days_limits(tmp_path: Path) -> None:
    job = job_of()
    for limit in ("requests_per_day = 1", "bytes_per_day = 10"):
        (tmp_path / limit).mkdir()
        node = make_nodes(tmp_path / limit, POLICY + limit + "\n", job=job)[0]
        request = first_request(tmp_path / limit / "run", job)
        codes = [refused(answer(node, request)), refused(answer(node, request._replace(round=1)))]
        assert codes[-1] == "rate"
        assert len(spends(node)) == codes.count("")
    small = POLICY + "disk_bytes_max = 1048576\n"
    big = job_of(slots=30_000)
    (tmp_path / "disk").mkdir()
    node = make_nodes(tmp_path / "disk", small, job=big)[0]
    assert refused(answer(node, first_request(tmp_path / "disk" / "run", big))) == "disk"


def test_the_texts_of_refusals_say_nothing_of_their_own() -> None:
    assert all(text.endswith(".") and "{" not in text and not any(c.isdigit() for c in text) for text in REFUSALS.values())
    assert len(JOBS) == 5
    assert ROUNDS < 100
    assert Node(NodeSource(3, None, None, None), Path(), Path()).client == 3
