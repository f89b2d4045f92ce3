"""The audit of a node: an honest one shows nothing, a sabotaged one is found."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from fedpdm import rounds
from fedpdm.algorithms.local import LocalInfo
from fedpdm.audit import node
from fedpdm.cli.main import app
from fedpdm.engines.flower.client import client
from fedpdm.errors import DataError
from fedpdm.privacy import schema_release
from fedpdm.privacy.noise import SecureGaussian


def test_the_replies_of_an_honest_node_are_the_same_whatever_the_row() -> None:
    found = node.attack_replies()
    assert not found.breached, found.differing
    assert "all are the same" in found.sentence


def test_a_refusal_that_depends_on_a_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken variant: a node that refuses rows that are not finite."""
    honest = client.load_examples

    def strict(source, *others):
        with np.load(source.path) as arrays:
            if not np.isfinite(arrays["features"]).all():
                raise DataError("a row is not finite")
        return honest(source, *others)

    monkeypatch.setattr(client, "load_examples", strict)
    found = node.attack_replies()
    assert found.breached
    assert any("not a number row, the first round" in line for line in found.differing)


def test_messages_of_a_node_keep_the_claim_and_those_with_too_little_noise_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    how = {"epsilon": 0.5, "canaries": 60, "rounds": 2}
    assert not node.attack_messages(**how).breached
    honest = SecureGaussian.release
    monkeypatch.setattr(SecureGaussian, "release", lambda self, x, sigma: honest(self, x, sigma / 20))
    found = node.attack_messages(**how)
    assert found.breached
    assert found.sentence.startswith("On a node: Attack")


def test_a_private_schema_keeps_its_claim_and_one_without_noise_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not node.attack_schema(runs=100).breached
    monkeypatch.setattr(schema_release, "_discrete_laplace", lambda counts, scale: list(counts))
    assert node.attack_schema(runs=100).breached


def gradients(monkeypatch: pytest.MonkeyPatch, solver: Any, steps: int) -> list[int]:
    """How many gradients of the loss `answer` computes on a node without, and with, the row that decides."""
    counted = []

    def solve(problem: Any, *others: Any) -> Any:
        def gradient(*arguments: Any) -> Any:
            jax.debug.callback(lambda: counted.append(1))
            return loss.gradient(*arguments)

        loss = problem.loss
        return solver(problem._replace(loss=loss._replace(gradient=gradient)), *others)

    monkeypatch.setattr(rounds, "solve", solve)
    found = []
    with node.row_that_decides(50, 1, steps) as (targets, x0):
        for target in targets:
            counted.clear()
            assert not client.answer(target.node, target.request(0, x0)).refused
            jax.effects_barrier()
            found.append(len(counted))
    return found


def stopping_early(problem: Any, plan: Any, examples: Any, x0: Any, linear_term: Any, weight: float, step: Any, *_: Any) -> Any:
    """The broken variant: a loop that ends when the tolerance is reached."""
    rows = examples.features[0], examples.labels[0], jnp.full(examples.labels.shape[1], 1 / examples.labels.shape[1])

    def body(carry: Any) -> Any:
        x, count, _ = carry
        d = problem.loss.gradient(x, *rows) + linear_term + weight * (x - x0)
        return x - step * d, count + 1, jnp.sum(d**2) <= plan.tolerance

    def more(carry: Any) -> Any:
        return (carry[1] < plan.steps) & ~carry[2]

    x, count, _ = jax.lax.while_loop(more, body, (x0, jnp.int32(0), jnp.bool_(False)))
    return x, LocalInfo(count)


def test_the_work_of_an_answer_does_not_depend_on_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict on time that no busy machine can change: gradients are counted. A loop that ends early is found."""
    honest = rounds.solve
    assert gradients(monkeypatch, honest, 40) == [40, 40]
    early = gradients(monkeypatch, stopping_early, 40)
    assert early[0] < early[1]


def test_times_are_compared() -> None:
    """No verdict here: a busy machine must not fail a test. benchmarks/timing.py has one, and its control."""
    found = node.attack_time(examples=50, runs=4, steps=40)
    assert found.p_value is not None
    assert 0 <= found.p_value <= 1


def test_the_command_says_what_it_cannot_do() -> None:
    for arguments, words in (
        (["--target", "client", "--attack", "dual"], "messages, replies, time, schema"),
        (["--target", "client", "demo"], "remove CONFIG"),
        (["--target", "server"], "simulation, client or live"),
    ):
        result = CliRunner().invoke(app, ["privacy", "audit", *arguments])
        assert result.exit_code
        assert words in str(result.exception) + result.output
