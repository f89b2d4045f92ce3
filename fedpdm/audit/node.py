"""Attacks on a real node: `introduce` and `answer` with secure noise, on the node's own files, against a hostile server.

messages   the one-run audit on the messages of `answer`
replies    every code, text, size, file and ledger entry, on two neighbouring data sets, for a list of hostile requests
time       the time of `answer` on the two, by a two-sample test
schema     traces of one row in a schema that was inferred under privacy
"""

import io
import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import mannwhitneyu

from fedpdm.algorithms.local import Examples
from fedpdm.audit.attacks import Scores
from fedpdm.audit.audit import claim_of
from fedpdm.audit.one_run import Canaries, one_run
from fedpdm.audit.small import small_config, small_federation
from fedpdm.audit.verdict import AuditResult, Claim, judge, judge_one_run
from fedpdm.compression.messages import LARGEST
from fedpdm.compression.wire import decode, encode, make_part, spread
from fedpdm.config import Config, validate
from fedpdm.data.tables import table_from_columns
from fedpdm.engines.flower.client.client import Node, answer, introduce
from fedpdm.engines.flower.client.held_jobs import hold
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.job import Job, make_job
from fedpdm.engines.flower.protocol import Meeting, Reply, Request
from fedpdm.errors import UserError
from fedpdm.privacy.ledger import Ledger
from fedpdm.privacy.schema_release import release_schema, thresholds_for

__all__ = [
    "NODE_ATTACKS",
    "Difference",
    "attack_messages",
    "attack_replies",
    "attack_time",
    "attack_schema",
    "row_that_decides",
]

NODE_ATTACKS = ("messages", "replies", "time", "schema")
CLASSES, WIDTH = 2, 60
_POLICY = """
[budget]
epsilon = {epsilon}
delta = 1e-5
[limits]
noise_multiplier_min = 0.01
step_size_max = 1e6
"""

Rows = tuple[np.ndarray, np.ndarray]


class Difference(NamedTuple):
    """The result of an attack on replies or time. A p below 0.001, or any reply that differs, tells neighbours apart."""

    attack: str
    breached: bool
    sentence: str
    p_value: float | None = None
    differing: tuple[str, ...] = ()


def _node_config(epsilon: float, mode: str, rounds: int) -> Config:
    """Return the settings of the small audit case, on a node's own rows."""
    values = small_config("sound", "canary", epsilon, mode).model_dump(mode="json", exclude_unset=True)
    values["data"] = {"name": "own", "clients": 1, "partition": "iid", "features": "raw", "basis": "none", "radius": 1.0}
    values["rounds"] |= {"total": rounds}
    return validate(values)


class AttackedNode:
    """A node in a folder, a job that it holds, and a server that may ask it anything."""

    def __init__(self, folder: Path, job: Job, rows: Rows) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        policy = folder / "policy.toml"
        policy.write_text(_POLICY.format(epsilon=10 * (job.settings.privacy.epsilon or 1.0)))
        np.savez(folder / "rows.npz", features=rows[0].astype(np.float32), labels=rows[1].astype(np.int32))
        self.job, self.node = job, Node(NodeSource(0, folder / "rows.npz", None, None), folder / "state", policy)
        self.node.state_dir.mkdir(mode=0o700, exist_ok=True)
        hold(self.node.state_dir, job, load_policy(policy))

    def request(self, round_index: int, x0: np.ndarray, accepted: str = "") -> Request:
        algorithm = self.job.setup[0].algorithm
        leaves = jax.tree.leaves(algorithm.broadcast(algorithm.init_server(jnp.asarray(x0, jnp.float32), 1)))
        vectors = encode([make_part(np.asarray(leaf), np.ones(leaf.shape, bool)) for leaf in leaves])
        return Request("train", self.job.digest, round_index, 0, accepted, vectors)

    def messages(self, x0: np.ndarray, rounds: int) -> np.ndarray:
        """Return the messages of all rounds; the server tells the node that it used each of them."""
        seen, accepted = [], ""
        for t in range(rounds):
            reply = _answered(answer(self.node, self.request(t, x0, accepted)))
            accepted = reply.message
            part = decode(reply.vectors, dimensions=[x0.size], limit=LARGEST)[0]
            seen.append(spread(part)[0].reshape(x0.shape))
        return np.stack(seen)

    def observed(self, said: Any) -> tuple:
        """Return everything visible in a reply and in the folder, except the values of the noised vector."""
        size = len(said.vectors) if isinstance(said, Reply) else 0
        files = sorted((p.name, p.stat().st_mode) for p in self.node.state_dir.rglob("*") if p.suffix in (".toml", ".npz"))
        ledger, entries = self.node.state_dir / "ledger.sqlite", []
        if ledger.exists():
            with Ledger(ledger) as opened:
                entries = [row[:6] for row in opened.rows()]
        return said.refused, said.reason, size, files, entries


def _answered(reply: Reply) -> Reply:
    if reply.refused:
        raise UserError(f"The node refused ({reply.refused}): {reply.reason} Its log, above, gives the reason.")
    return reply


@contextmanager
def _targets(job: Job, *rows: Rows) -> Iterator[list[AttackedNode]]:
    with tempfile.TemporaryDirectory() as folder:
        yield [AttackedNode(Path(folder) / str(number), job, own) for number, own in enumerate(rows)]


def _job(config: Config, slots: int, features: int) -> Job:
    return make_job(config, slots, [str(k) for k in range(CLASSES)], [f"x{j}" for j in range(features)])


def attack_messages(
    epsilon: float = 4.0, mode: str = "linearised", canaries: int = 100, rounds: int = 4, seed: int = 0
) -> AuditResult:
    """Run the one-run audit on the messages of a real node, with its own files, float64 solver, lattice noise and ledger.

    Parameters
    ----------
    epsilon, mode
        The claimed budget, and privacy.mode.
    canaries, rounds, seed : int
        Number of canaries, rounds of the job, and the seed of everything random.

    Returns
    -------
    AuditResult
        Lower bounds and verdict.
    """
    config = _node_config(epsilon, mode, rounds)
    federation = small_federation(canaries + 20, canaries + 1, CLASSES, seed)
    features, labels, sizes = federation.features, federation.labels, federation.sizes
    job = _job(config, features.shape[1], features.shape[2])
    setup, plan = job.setup
    claim = claim_of(job.config, plan, 1)

    def ask(placed: Canaries, there: np.ndarray) -> np.ndarray:
        chosen = there.astype(bool)
        rows = np.concatenate([placed.features[chosen], features[0, canaries:]])
        classes = np.concatenate([np.zeros(chosen.sum(), np.int32), labels[0, canaries:]])
        with _targets(job, (rows, classes)) as (target,):
            return target.messages(placed.x0, len(claim.rounds))

    examples = Examples(jnp.asarray(features), jnp.asarray(labels), jnp.asarray(sizes), jnp.int32(0))
    how: dict[str, Any] = {"rounds": claim.rounds, "radius": 1.0, "canaries": canaries, "seed": seed}
    guessed = one_run(setup, examples, CLASSES, **how, messages=ask)
    result = judge_one_run(guessed, claim)
    return result._replace(attack="messages", sentence=f"On a node: {result.sentence}")


ODD_ROWS: dict[str, np.ndarray] = {
    "largest": np.array([1.0, 0.0, 0.0]),
    "huge": np.array([3e38, -3e38, 3e38]),
    "not a number": np.array([math.nan, 0.0, 0.0]),
    "infinite": np.array([math.inf, -math.inf, 1.0]),
    "denormal": np.array([1e-45, 1e-40, 0.0]),
}


def attack_replies(seed: int = 0) -> Difference:
    """Send the same hostile requests to two nodes, one of which has a row more. Only the noised values may differ.

    Parameters
    ----------
    seed : int
        Of the rows.

    Returns
    -------
    Difference
        The replies that differ.
    """
    rng = np.random.default_rng(seed)
    features, labels = rng.normal(size=(12, 3)) / 4, rng.integers(0, CLASSES, 12)
    plain = _node_config(4.0, "linearised", 4)
    narrow = {"features": "fourier", "fourier_count": 1, "fourier_bandwidth": 1e-3}  # the map that a policy just allows
    mapped = plain.model_copy(update={"data": plain.data.model_copy(update=narrow)})
    cases = [(name, plain) for name in ODD_ROWS] + [(name, mapped) for name in ("largest", "huge")]
    differing = []
    for name, config in cases:
        more = np.concatenate([features, ODD_ROWS[name][None]]), np.append(labels, 0)
        job = _job(config, 16, 3)
        with _targets(job, (features, labels), more) as targets, redirect_stderr(io.StringIO()):  # the log of made-up nodes
            for asked, said in _conversation(targets):
                if said[0] != said[1]:
                    differing.append(f"{name} row, {asked}: {said[0][:3]} against {said[1][:3]}")
    verdict = f"{len(differing)} differ" if differing else "all are the same"
    seen = "codes, texts, sizes, files, ledger"
    sentence = f"Replies of a node with and without one odd row, in {len(cases)} cases ({seen}): {verdict}."
    return Difference("replies", bool(differing), sentence, differing=tuple(differing))


def _conversation(targets: list[AttackedNode]) -> Iterator[tuple[str, list[tuple]]]:
    """Yield each hostile request to both nodes, and everything visible in the replies."""
    shape = targets[0].job.shape
    zero, huge = np.zeros(shape, np.float32), np.full(shape, 1e30, np.float32)
    first = targets[0].request(0, zero)
    asked: dict[str, Meeting | Request] = {
        "an introduction": Meeting(first.job),
        "an unknown job": Meeting("0" * 64),
        "no name": Meeting(""),
        "another client": first._replace(client=3),
        "a negative round": first._replace(round=-1),
        "a huge model": targets[0].request(0, huge),
        "no vectors": first._replace(vectors=b""),
        "damaged vectors": first._replace(vectors=first.vectors[:-1] + b"x"),
        "an unknown message": first._replace(accepted="0" * 32),
        "the first round": first,
        "the same again": first,
        "the same with another model": targets[0].request(0, zero + 1),
        "a later round": targets[0].request(2, zero + 0.5),
        "an evaluation": first._replace(task="evaluate"),
    }
    for name, request in asked.items():
        speak = introduce if isinstance(request, Meeting) else answer
        yield name, [target.observed(speak(target.node, request)) for target in targets]  # type: ignore[operator]


@contextmanager
def row_that_decides(examples: int, rounds: int, steps: int) -> Iterator[tuple[list[AttackedNode], np.ndarray]]:
    """Make two nodes in the mode certified, and a model with which only the last row of the second node delays the tolerance.

    Parameters
    ----------
    examples, rounds, steps
        Slots of the nodes, rounds of the job, and local steps in a round.

    Returns
    -------
    context manager
        The two nodes, and the model.
    """
    config = _node_config(4.0, "certified", rounds)
    local = config.local.model_copy(update={"steps": steps, "step_size": 0.1, "tolerance": (0.1 / examples) ** 2})
    stateless = config.algorithm.model_copy(update={"name": "fedprox", "mu": 1.0})  # a noised dual would blur the steps
    job = _job(config.model_copy(update={"local": local, "algorithm": stateless}), examples, WIDTH)
    features, labels = np.zeros((examples - 1, WIDTH)), np.zeros(examples - 1)
    features[:, 1] = 1.0  # x0 predicts these rows correctly: they have no gradient
    x0 = np.zeros((CLASSES, WIDTH), np.float32)
    x0[0, 1], x0[1, 0] = 40.0, 8.0  # and x0 is wrong about the odd row
    odd = np.zeros(WIDTH)
    odd[0] = 1.0
    with _targets(job, (features, labels), (np.concatenate([features, odd[None]]), np.append(labels, 0))) as targets:
        yield targets, x0


def attack_time(examples: int = 2000, runs: int = 20, steps: int = 60, seed: int = 0) -> Difference:
    """Time `answer` in the mode certified, with and without one row that decides whether the tolerance is reached at once.

    The runs alternate, in a new random order for each pair, so a busy machine slows both alike. The time of the processor is
    compared too: other programs change it less than they change the clock on the wall.

    Parameters
    ----------
    examples, runs, steps, seed : int
        Slots of the nodes, answers to time, local steps, and the seed of the order.

    Returns
    -------
    Difference
        Medians, and twice the smaller p-value of the two-sample tests of both clocks.
    """
    rng, clocks = np.random.default_rng(seed), (time.perf_counter, time.process_time)
    taken: list[list[list[float]]] = [[[], []] for _ in clocks]
    with row_that_decides(examples, runs, steps) as (targets, x0):
        accepted = ["", ""]
        for t in range(runs):
            for side in rng.permutation(2):
                request = targets[side].request(t, x0, accepted[side])
                began = [clock() for clock in clocks]
                reply = answer(targets[side].node, request)
                ended = [clock() for clock in clocks]
                accepted[side] = _answered(reply).message
                if t:  # the first answer of a node compiles
                    for kind, start, end in zip(taken, began, ended, strict=True):
                        kind[side].append(end - start)
    wall, processor = (float(mannwhitneyu(kind[0], kind[1]).pvalue) for kind in taken)
    medians = [f"{np.median(kind[1]):.3g} and {np.median(kind[0]):.3g} s" for kind in taken]
    sentence = (
        f"Time of {runs - 1} answers of a node with {examples} rows and of one with a row less: medians {medians[0]}, "
        f"p = {wall:.3g}; of the processor {medians[1]}, p = {processor:.3g} (Mann-Whitney)."
    )
    p = min(1.0, 2 * min(wall, processor))
    return Difference("time", p < 1e-3, sentence, p_value=p)


def attack_schema(epsilon: float = 1.0, runs: int = 4000, rows: int = 400) -> AuditResult:
    """Release the schema of a table many times, with and without one row, and count the traces of that row.

    Its word, its number and its label occur in as many other rows as the thresholds need: there, one more row matters most.

    Parameters
    ----------
    epsilon : float
        The budget of one release.
    runs, rows : int
        Releases on each data set, and rows of the table.

    Returns
    -------
    AuditResult
        Lower bounds and verdict.
    """
    delta, common = 1e-5, {"word": "often", "number": 1.0, "label": "yes"}
    odd = {"word": "edge", "number": 1.5e6, "label": "edge"}
    limits = thresholds_for(len(odd), epsilon, delta)
    edge = {"word": int(limits.word), "number": int(limits.grid), "label": int(limits.word)}
    columns = {name: [odd[name]] * edge[name] + [common[name]] * (rows - edge[name]) for name in odd}
    columns["label"][-rows // 4 :] = ["no"] * (rows // 4)

    def score(columns: dict[str, list[Any]]) -> float:
        text = repr(release_schema(table_from_columns(columns), "label", None, epsilon, delta).schema)
        return text.count("'edge'") + ("2097152" in text)

    more = {name: [*values, odd[name]] for name, values in columns.items()}
    present, absent = (np.array([score(table) for _ in range(runs)], float) for table in (more, columns))
    result = judge(Scores(present, absent, 0.0), Claim("sound", epsilon, delta, "add-remove", (0,)), "schema")
    return result._replace(sentence=f"The private schema of a table: {result.sentence}")
