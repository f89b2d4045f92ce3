"""The number of directions of a public basis: by a rule from public sizes and the budget, never from a row."""

import hashlib
import json

import numpy as np
import pytest

import fedpdm
from fedpdm.config import digest, load_config
from fedpdm.data.basis import MOST
from fedpdm.data.datasets import load_dataset
from fedpdm.data.features import directions_in
from fedpdm.data.prepare import build_federation, prepare_rows
from fedpdm.engines.flower.init import Arrays, job_from
from fedpdm.engines.flower.job import make_job
from fedpdm.errors import ConfigError
from fedpdm.runs.saved import load_model
from fedpdm.setup.defaults import Sizes, by_rule
from fedpdm.setup.directions import FEWEST, PRIVATE_DIRECTIONS, directions, federate, strength, with_directions
from fedpdm.setup.resolve import resolve

DIGITS = ["data.name=digits", "data.scattering_scale=1", "data.clients=10", "rounds.participants=5"]
FALLING = np.arange(1, 501) ** -0.7


def demo(*settings: str) -> fedpdm.Config:
    return load_config("demo", [*DIGITS, *settings])


def test_less_noise_and_fewer_classes_pay_for_more_directions():
    by_strength = [directions(found, 10, FALLING) for found in (1, 30, 100, 300, 1000, np.inf)]
    assert by_strength == sorted(by_strength)
    assert (by_strength[0], by_strength[-1]) == (FEWEST, MOST)
    assert directions(100, 2, FALLING) > directions(100, 10, FALLING)
    assert directions(np.inf, 10, FALLING[:7]) == 7, "there are no more than there are"


def test_a_steep_spectrum_gets_fewer_directions_than_a_flat_one():
    assert directions(300, 10, FALLING**3) < directions(300, 10, FALLING)


def test_the_strength_is_mu_n_for_one_client_and_counts_a_cohort_as_one():
    config, one = demo(), strength(demo(), np.array([1000]), 10)
    assert one == pytest.approx(0.268 * 1000, rel=0.01)
    assert strength(config, np.full(4, 250), 10) == pytest.approx(one / 2)
    sums = demo("privacy.trust=cohorts", "privacy.mode=linearised", "local.steps=1", "compression.values=float32")
    assert strength(sums, np.full(4, 250), 10) == pytest.approx(one)
    assert strength(demo("privacy.relation=replace-one"), np.array([1000]), 10) == pytest.approx(one / 2)
    assert strength(demo("privacy.mechanism=none", "privacy.epsilon=", "privacy.clip="), np.array([1000]), 10) == np.inf


def test_the_clients_rows_have_as_many_directions_as_the_settings_say():
    """However the number was found, the rows are the same bit for bit: a resumed run, a node and predict need it."""
    federation = federate(demo(), progress=False)
    config = resolve(demo(), federation)
    size = config.data.basis_size
    assert isinstance(size, int)
    assert federation.features.shape[2] == size + 1
    again = build_federation(demo(f"data.basis_size={size}"), progress=False)
    np.testing.assert_array_equal(federation.features, again.features)
    np.testing.assert_array_equal(federation.test_features, again.test_features)
    more = resolve(demo("privacy.epsilon=10.0"), federate(demo("privacy.epsilon=10.0"), progress=False))
    assert directions_in(more.data) > size


def test_the_number_depends_on_sizes_alone(monkeypatch):
    """Other pixels and other labels of the same number give the same directions; half of the rows give fewer."""
    from fedpdm.data import prepare

    known = load_dataset("digits")
    rng = np.random.default_rng(0)
    other = known._replace(features=rng.random(known.features.shape).astype(np.float32), labels=rng.permutation(known.labels))
    sizes = []
    for dataset in (known, other, known._replace(features=known.features[:700], labels=known.labels[:700])):
        monkeypatch.setattr(prepare, "load_dataset", lambda *_, dataset=dataset, **__: dataset)
        sizes.append(federate(demo("data.partition=iid"), progress=False).features.shape[2])
    assert sizes[0] == sizes[1] > sizes[2]


def test_auto_is_refused_where_the_sizes_are_not_known():
    with pytest.raises(ConfigError, match=r"data\.basis_size=auto depends on the number of rows"):
        build_federation(demo(), progress=False)
    with pytest.raises(ConfigError, match=r"data\.basis_size=auto is for simulation"):
        make_job(demo(), 144, list("0123456789"), load_dataset("digits").feature_names)


def test_a_job_names_the_number_of_the_simulation():
    job = job_from("demo", DIGITS, slots=None)
    config = resolve(demo(), federate(demo(), progress=False))
    assert job.config.data.basis_size == config.data.basis_size
    assert job.shape == (10, directions_in(config.data) + 1)
    names = load_dataset("digits").feature_names
    own = ["data.name=own", "data.clients=10", "data.scattering_scale=1", "rounds.participants=5", "data.basis=strokes"]
    other = job_from("demo", own, slots=[144], arrays=Arrays(list("0123456789"), list(names)))
    assert abs(directions_in(other.config.data) - directions_in(config.data)) <= 1, "144 slots each instead of 144 and some 145"


def test_without_a_basis_the_number_stays_open_and_a_private_basis_has_its_own():
    names = load_dataset("digits").feature_names
    plain = with_directions(demo("data.basis=none"), np.full(10, 144), 10, names)
    assert plain.data.basis_size == "auto"
    assert make_job(plain, 144, list("0123456789"), names).settings.data.basis_size == "auto"
    raw = demo("data.features=raw", "data.scaling=unit", "data.scattering_scale=2")  # the basis is auto, and has nothing to do
    assert make_job(raw, 144, list("0123456789"), names).shape == (10, 65)
    private = demo("data.basis=private", "data.features=raw", "data.scaling=unit", "data.scattering_scale=2")
    assert with_directions(private, np.full(10, 144), 10, names).data.basis_size == PRIVATE_DIRECTIONS
    assert resolve(private, build_federation(private, progress=False)).data.basis_size == PRIVATE_DIRECTIONS


def test_the_former_default_keeps_its_digest_and_the_new_one_has_its_own():
    """Stored results of 200 directions are not taken for those of the rule."""
    values = demo("data.basis_size=200").model_dump(mode="json", exclude_defaults=True)
    del values["data"]["basis_size"]
    former = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
    assert digest(demo("data.basis_size=200")) == former
    assert len({digest(demo()), digest(demo("data.basis_size=200")), digest(demo("data.basis_size=20"))}) == 3
    assert digest(demo("data.basis=none")) == digest(demo("data.basis=none", "data.basis_size=auto"))


def test_a_finished_run_predicts_with_its_directions(tmp_path):
    run = fedpdm.train(demo("rounds.total=2", "metrics.diagnose_every=0"), tmp_path / "run", progress=False, report=False)
    model, digits = load_model(tmp_path / "run"), load_dataset("digits")
    assert model.weights.shape == (10, directions_in(run.config.data) + 1)
    rows = prepare_rows(model.config, digits.test_features, digits.feature_names)
    accuracy = np.mean(model.probabilities(rows).argmax(axis=1) == digits.test_labels)
    assert accuracy == pytest.approx(run.summary["test_accuracy"], abs=1e-6)


def test_behind_a_basis_clip_and_travel_follow_from_the_strength():
    """The number of directions does not shorten the travel: the first directions matter most, however many follow."""
    config = load_config("private-mapped", ["data.name=digits", "problem.loss=softmax"])
    for size in (20, 200):
        chosen = by_rule(config, Sizes(np.array([1000.0]), size + 1, 10, based=True))
        assert chosen.rounds.total / chosen.algorithm.rho == pytest.approx(4 * 0.268 * 1000, rel=0.01)
        assert chosen.privacy.clip == pytest.approx(0.2 * 2**0.5)
        assert chosen.metrics.released == "last"
    plain = by_rule(config, Sizes(np.array([1000.0]), 201, 10))
    assert plain.rounds.total / plain.algorithm.rho == pytest.approx(100)
    strong = by_rule(config, Sizes(np.array([1e6]), 201, 10, based=True))
    assert (strong.rounds.total, strong.privacy.clip) == (80, pytest.approx(0.7 * 2**0.5)), "a strong run needs no small clip"


def test_other_rounds_share_the_same_travel():
    """More rounds take shorter steps; fewer take longer ones, as far as steps may be long."""
    sizes = Sizes(np.array([1000.0]), 31, 10, based=True)
    travels = {}
    for rounds in (1, 10, 20, 100):
        config = load_config("private-mapped", ["data.name=digits", "problem.loss=softmax", f"rounds.total={rounds}"])
        travels[rounds] = rounds / by_rule(config, sizes).algorithm.rho
    assert travels[10] == pytest.approx(travels[20], rel=0.01)
    assert travels[100] == pytest.approx(travels[20], rel=0.01)
    assert travels[1] == pytest.approx(200)


@pytest.mark.parametrize("own", [False, True])
def test_a_job_of_the_rule_has_the_settings_of_the_simulation(own):
    """A job of a known data set or of bare arrays gets rounds, step, clip and model by the rule, like a simulated run."""
    settings = ["data.name=digits", "data.scattering_scale=1", "data.clients=4", "data.basis=strokes"]
    config = load_config("private-mapped", settings)
    simulated = resolve(config, federate(config, progress=False))
    if own:
        names = Arrays(list("0123456789"), list(load_dataset("digits").feature_names))
        job = job_from("private-mapped", ["data.name=own", *settings[1:]], slots=[361, 361, 360, 360], arrays=names)
    else:
        job = job_from("private-mapped", settings, slots=None)
    assert job.config.privacy.defaults == "given"
    assert job.config.privacy.clip == pytest.approx(simulated.privacy.clip)
    assert job.config.algorithm.rho == pytest.approx(simulated.algorithm.rho)
    assert job.config.local.step_size == pytest.approx(simulated.local.step_size)
    assert (job.config.rounds.total, job.config.metrics.released) == (simulated.rounds.total, simulated.metrics.released)
    assert job.config.data.basis_size == simulated.data.basis_size


@pytest.mark.parametrize("other", ["fedavg", "scaffold"])
def test_by_the_rule_every_algorithm_takes_the_same_step(other, tmp_path):
    """One linearised step of all clients: duals and control variates cancel, so the models agree up to rounding."""
    settings = [*DIGITS[:3], "rounds.total=3", "metrics.diagnose_every=0", "privacy.epsilon=10.0"]
    models = {}
    for name in ("fedpdm", other):
        config = load_config("private-mapped", [*settings, f"algorithm.name={name}"])
        fedpdm.train(config, tmp_path / name, progress=False, report=False)
        models[name] = load_model(tmp_path / name).weights
    np.testing.assert_allclose(models[other], models["fedpdm"], rtol=0, atol=1e-3 * np.abs(models["fedpdm"]).max())
