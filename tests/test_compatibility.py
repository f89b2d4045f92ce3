"""The parts that read internals of JAX: known versions, a switch, and the plain path without them."""

import re
import tomllib
import warnings
from importlib.metadata import version
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_federation

from fedpdm import native
from fedpdm.config import load_config
from fedpdm.engines.simulation import programs
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.native.fence import Fence, _major_minor, _warn_once

ROOT = Path(__file__).parent.parent
FENCES = {"native": native, "programs": programs}
SETTINGS = ["data.clients=3", "rounds.total=2", "rounds.participants=2", "local.steps=3", "local.batch_size=4"]


def trained() -> np.ndarray:
    simulation = build_simulation(load_config("plain", SETTINGS), random_federation([20, 7, 13]))
    list(simulation.run())
    return np.asarray(simulation.model)


def unknown(fence: Fence) -> Fence:
    """The same fence, as it would be on a JAX that is newer than all it knows."""
    _warn_once.cache_clear()
    return fence._replace(oldest=(0, 1), newest=(0, 2))


@pytest.mark.parametrize("part", FENCES)
def test_an_unknown_jax_costs_one_warning_and_gives_the_plain_results(monkeypatch, part):
    if part == "native" and not native._installed():
        pytest.skip("Numba is not installed, so there is nothing to fence")
    for other in set(FENCES) - {part}:
        monkeypatch.setenv(FENCES[other].FENCE.switch, "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where the tests themselves run on a JAX that is not known
        expected = trained()
    monkeypatch.setattr(FENCES[part], "FENCE", unknown(FENCES[part].FENCE))
    with pytest.warns(UserWarning, match=r"known to work with jax(lib)? 0\.1 to 0\.2, and .* is installed") as caught:
        found = trained()
    assert len(caught) == 1
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("part", FENCES)
def test_a_closed_fence_keeps_the_part_unused(monkeypatch, part):
    monkeypatch.setenv(FENCES[part].FENCE.switch, "0")
    assert not FENCES[part].FENCE.is_open()
    if part == "native":
        assert not native.native_kernels()
    else:
        for by in (2.0, 3.0):
            program = programs.shared_program(lambda x, by=by: by * x, (jnp.ones(3),))
            assert program.compiled
            np.testing.assert_array_equal(program.call(jnp.ones(3)), np.full(3, by))


@pytest.mark.parametrize("part", FENCES)
def test_the_known_versions_are_those_that_are_tested(part):
    """None is older than pyproject.toml admits; the newest is that of constraints.txt: a new one needs a look at the part."""
    fence = FENCES[part].FENCE
    (wanted,) = (each for each in _project()["dependencies"] if each.startswith("jax"))
    assert _major_minor(wanted.removeprefix("jax>=")) <= fence.oldest <= fence.newest
    (tested,) = re.findall(rf"^{fence.package}==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert fence.newest == _major_minor(tested)


@pytest.mark.parametrize(("installed", "known"), [("0.8.0", True), ("0.10.99", True), ("0.7.2", False), ("0.11.0.dev1", False)])
def test_versions_are_compared_as_numbers(monkeypatch, installed, known):
    _warn_once.cache_clear()
    monkeypatch.setattr("fedpdm.native.fence.version", lambda package: installed)
    fence = Fence("A part", "FEDPDM_NO_SUCH_SWITCH", "jax", (0, 8), (0, 10), "nothing happens")
    if known:
        assert fence.is_open()
    else:
        with pytest.warns(UserWarning, match=f"A part is known .* and {installed} is installed: nothing happens"):
            assert not fence.is_open()


def test_the_installed_jax_is_one_that_the_package_admits():
    (wanted,) = (each for each in _project()["dependencies"] if each.startswith("jax"))
    assert _major_minor(version("jax")) >= _major_minor(wanted.removeprefix("jax>="))


def _project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
