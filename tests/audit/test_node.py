"""The audit of a node: an honest one shows nothing, a sabotaged one is found."""

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

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
    """A node that refuses rows that are not finite, as one might think it should."""
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


def test_times_are_compared() -> None:
    """No verdict here: a busy machine must not fail a test. benchmarks/timing.py has one, and its control."""
    found = node.attack_time(examples=50, runs=4, steps=40)
    assert found.p_value is not None
    assert 0 <= found.p_value <= 1


def test_the_command_says_what_it_cannot_do() -> None:
    for arguments, words in (
        (["--target", "client", "--attack", "dual"], "messages, replies, time, schema"),
        (["--target", "client", "demo"], "leave out CONFIG"),
        (["--target", "server"], "simulation or client"),
    ):
        result = CliRunner().invoke(app, ["privacy", "audit", *arguments])
        assert result.exit_code
        assert words in str(result.exception) + result.output
