"""Honest clients with extreme but valid data, and what the server's check says about their messages."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.algorithms import Broadcast
from fedpdm.algorithms.local import Examples
from fedpdm.choices import ALGORITHMS
from fedpdm.compression.links import shared_support
from fedpdm.config import load_config
from fedpdm.data import Federation, federation_from_arrays
from fedpdm.data.prepare import radius_of
from fedpdm.errors import ConfigError
from fedpdm.hostile.check import Verdict, check_message, next_state
from fedpdm.privacy.mechanism import sound, sound_every_step
from fedpdm.privacy.plan import Plan
from fedpdm.rounds import Setup, client_round, cohort_round
from fedpdm.setup.band import band_of, no_band_because
from fedpdm.setup.build import build_setup
from fedpdm.setup.resolve import resolve

CLASSES, ROWS = 3, 8
BASE = [
    "data.clients=40",
    "rounds.participants=10",
    "data.features=raw",
    "data.basis=none",
    "local.steps=4",
    "local.step_size=0.4",
]
BASE += ["algorithm.server_rule=participants", "algorithm.rho=0.5", "problem.penalty=none", "problem.gamma=0.0"]
BASE += ["compression.values=float32"]
NO_NOISE = ["privacy.mechanism=none", "privacy.epsilon=", "privacy.clip="]
SPARSE = ["compression.uplink=0.3"]
COHORTS = ["privacy.trust=cohorts", "cohorts.size=10", "privacy.mode=linearised"]

CASES: dict[str, list[str]] = {
    "fedpdm, contractive": [],
    "fedpdm, contractive, int8": ["compression.values=int8"],
    "fedpdm, contractive, automatic values": ["compression.values=auto"],
    "fedpdm, contractive, non-convex": ["problem.beta=0.2"],
    "fedpdm, falling steps": ["local.schedule=inverse-sqrt"],
    "fedpdm, linearised": ["privacy.mode=linearised", "problem.beta=0.2"],
    "fedpdm, linearised, subgradient": [
        "privacy.mode=linearised",
        "problem.penalty=l1",
        "problem.gamma=0.1",
        "problem.penalty_by=subgradient",
    ],
    "fedpdm, one pass": ["local.batch_size=2"],
    "fedpdm, certified": ["local.tolerance=0.01", "local.steps=12"],
    "fedpdm, certified, non-convex": ["local.tolerance=0.01", "local.steps=12", "problem.beta=0.2"],
    "fedpdm, every step": ["privacy.mode=every-step"],
    "fedpdm, every step, non-convex": ["privacy.mode=every-step", "problem.beta=0.2"],
    "fedpdm, clipped batches": ["privacy.mode=batch-clipped", "local.batch_size=2"],
    "fedpdm, shared coordinates": [*SPARSE, "compression.kind=shared-randk"],
    "fedpdm, public coordinates": [*SPARSE, "compression.kind=public-topk"],
    "fedpdm, random coordinates": [*SPARSE, "compression.kind=randk"],
    "fedpdm, noised coordinates": [*SPARSE, "compression.kind=noisy-topk"],
    "fedpdm, noised coordinates, certified": [*SPARSE, "compression.kind=noisy-topk", "local.tolerance=0.01", "local.steps=12"],
    "fedpdm, random coordinates, every step": [*SPARSE, "compression.kind=randk", "privacy.mode=every-step"],
    "fedpdm, no noise": NO_NOISE,
    "fedpdm, no noise, batches": [*NO_NOISE, "local.batch_size=2"],
    "fedpdm, no noise, largest": [*NO_NOISE, *SPARSE, "compression.kind=topk", "problem.beta=0.2"],
    "fedavg, contractive": ["algorithm.name=fedavg"],
    "fedavg, one pass, float16": ["algorithm.name=fedavg", "local.batch_size=2", "compression.values=float16"],
    "fedavg, noised coordinates": ["algorithm.name=fedavg", *SPARSE, "compression.kind=noisy-topk"],
    "fedavg, logistic": ["algorithm.name=fedavg", "problem.loss=logistic"],
    "fedprox, linearised": ["algorithm.name=fedprox", "privacy.mode=linearised"],
    "fedprox, random coordinates": ["algorithm.name=fedprox", *SPARSE, "compression.kind=randk"],
    "scaffold, contractive": ["algorithm.name=scaffold"],
    "scaffold, falling steps": ["algorithm.name=scaffold", "local.schedule=inverse-sqrt"],
    "scaffold, random coordinates": ["algorithm.name=scaffold", *SPARSE, "compression.kind=randk"],
    "scaffold, shared coordinates": ["algorithm.name=scaffold", *SPARSE, "compression.kind=shared-randk"],
    "scaffold, no noise": ["algorithm.name=scaffold", *NO_NOISE],
    "feddyn, contractive": ["algorithm.name=feddyn", "algorithm.alpha=0.5"],
    "feddyn, certified": ["algorithm.name=feddyn", "algorithm.alpha=0.5", "local.tolerance=0.01", "local.steps=12"],
    "feddyn, noised coordinates": ["algorithm.name=feddyn", "algorithm.alpha=0.5", *SPARSE, "compression.kind=noisy-topk"],
    "feddyn, one pass": ["algorithm.name=feddyn", "algorithm.alpha=0.5", "local.batch_size=2"],
    "feddr, contractive": ["algorithm.name=feddr"],
    "feddr, certified": ["algorithm.name=feddr", "local.tolerance=0.01", "local.steps=12"],
    "afedpd, contractive": ["algorithm.name=afedpd"],
    "afedpd, certified": ["algorithm.name=afedpd", "local.tolerance=0.01", "local.steps=12"],
    "fedpdm, cohorts": COHORTS,
    "fedpdm, cohorts, few bits": [*COHORTS, "cohorts.bits=12"],
    "fedpdm, cohorts, shared coordinates": [*COHORTS, *SPARSE, "compression.kind=shared-randk"],
    "fedpdm, cohorts, whole clients": [*COHORTS[:2], "privacy.unit=client"],
    "scaffold, cohorts, contractive": ["algorithm.name=scaffold", *COHORTS[:2]],
}

MODES = {
    "contractive": [],
    "linearised": ["privacy.mode=linearised"],
    "one pass": ["local.batch_size=2"],
    "certified": ["local.tolerance=0.01", "local.steps=12"],
    "every step": ["privacy.mode=every-step"],
    "clipped batches": ["privacy.mode=batch-clipped", "local.batch_size=2"],
    "no noise": NO_NOISE,
}
KINDS = {kind: [*SPARSE, f"compression.kind={kind}"] for kind in ("randk", "shared-randk", "public-topk", "noisy-topk")}
KINDS["topk, no noise"] = [*NO_NOISE, *SPARSE, "compression.kind=topk"]
VALUES = {values: [f"compression.values={values}"] for values in ("float16", "int8", "auto")}
SUMS = {"cohorts": COHORTS, "new cohorts": [*COHORTS, "cohorts.members=new", "rounds.sampling=cycle"]}

# What an algorithm needs besides. The contribution of FedDR to a sum holds how far the model has moved, which is far here.
NEEDS = {"feddyn": ["algorithm.alpha=0.5"], "feddr": ["cohorts.reach=200.0"]}

# Every algorithm in every mode, with every kind of coordinates and of values, and in cohorts.
GRID: dict[str, list[str]] = {
    f"{name} / {what}": [
        f"algorithm.name={name}",
        *(need for need in NEEDS.get(name, []) if not need.startswith("cohorts.") or what in SUMS),
        *settings,
    ]
    for name in ALGORITHMS
    for what, settings in {**MODES, **KINDS, **VALUES, **SUMS}.items()
}
CASES |= GRID


def extreme_federation(clients: int, features: int, seed: int = 0) -> Federation:
    """A third of the clients has equal rows of full norm, with one label; a third has zeros; a third more rows of any kind."""
    rng = np.random.default_rng(seed)
    parts = []
    for client in range(clients):
        count = ROWS * (1 + (client % 3 == 2))
        rows = rng.normal(size=(count, features))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True) * 1.000001
        labels = rng.integers(0, CLASSES, count)
        if client % 3 == 0:
            rows[:], labels[:] = rows[0], labels[0]
        elif client % 3 == 1:
            rows[:] = 0.0
        parts.append((rows.astype(np.float32), labels.astype(np.int32)))
    parts[2][1][:CLASSES] = np.arange(CLASSES)
    return federation_from_arrays(parts, *parts[2])


def prepared(case: str, clients: int = 60, features: int = 20, epsilon: float = 2.0) -> tuple[Setup, Federation, Plan | None]:
    """The settings of a case with their band, the clients, and the plan. A large epsilon leaves the radius alone."""
    federation = extreme_federation(clients, features)
    budget = [] if "privacy.epsilon=" in CASES[case] else [f"privacy.epsilon={epsilon}"]
    config = resolve(load_config("demo", [*BASE, *CASES[case], *budget]), federation)
    setup, plan = build_setup(config, federation)
    band = band_of(setup, plan, radius_of(config) or 1.0)
    if band is None:
        raise ConfigError(f"not checked: {no_band_because(setup, plan, radius_of(config) or 1.0)}")
    return setup._replace(band=band), federation, plan


def with_noise(setup: Setup, plan: Plan | None, multiplier: Any) -> Setup:
    """The settings with a noise multiplier that is an input of the program; sums keep theirs, and their lattice."""
    if plan is None or setup.privacy.sums:
        return setup
    steps = setup.local.steps
    every = plan.mode == "every-step"
    return setup._replace(privacy=sound_every_step(plan.bound, multiplier, steps) if every else sound(plan.bound, multiplier))


@functools.cache
def program(case: str, clients: int, features: int, rounds: int) -> Any:
    """A compiled function `(seed, noise multiplier) -> verdicts [rounds, senders]`; a sender is a client or a cohort."""
    plain, federation, plan = prepared(case, clients, features)
    algorithm, band, sums = plain.algorithm, plain.band, plain.privacy.sums
    size = sums.cohort.members if sums else 1
    rows = tuple(jnp.asarray(part) for part in (federation.features, federation.labels, federation.sizes))

    def one(setup: Setup, examples: Examples, own: Any, known: Any, broadcast: Any, t: Any, keys: Any, support: Any) -> Any:
        if sums:
            result = cohort_round(setup, examples, jnp.ones(size, bool), own, broadcast, t, keys, support)
        else:
            alone = examples._replace(client=examples.client[0])
            result = client_round(setup, alone, own, broadcast, t, keys[0], support)
        gain = algorithm.model_vector(algorithm.gain(jnp.float32(1.0)))
        message, sent = result.packed.message, result.packed.sent
        verdict = check_message(setup, band, t, broadcast, known, message, sent, result.noise / gain, support)
        return result.state, next_state(setup, broadcast, known, message, sent), verdict

    def run(features: Any, labels: Any, sizes: Any, seed: Any, multiplier: Any) -> Verdict:
        setup, senders, shape = with_noise(plain, plan, multiplier), features.shape[0] // size, (CLASSES, features.shape[2])
        members = jnp.arange(senders * size).reshape(senders, size)
        first = algorithm.init_client(jnp.zeros(shape))
        start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (senders, *leaf.shape)), first)

        def step(carry: Any, t: Any) -> Any:
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), t), senders * size + 2)
            far = 10.0 ** jax.random.uniform(keys[0], minval=-2, maxval=1.5)  # from a first model to one that is far away
            x0 = far * jax.random.normal(keys[1], shape)
            extra = algorithm.broadcast(algorithm.init_server(x0, 1)).extra
            broadcast = Broadcast(x0, jax.tree.map(lambda leaf: leaf + 0.01 * x0, extra))
            support = shared_support(setup.links, seed, t, x0)

            def each(who: Any, own: Any, known: Any, of: Any) -> Any:
                return one(setup, Examples(features, labels, sizes, who), own, known, broadcast, t, of, support)

            own, known, verdict = jax.vmap(each)(members, *carry, keys[2:].reshape(senders, size))
            return (own, known), verdict

        return jax.lax.scan(step, (start, start), jnp.arange(rounds))[1]

    return functools.partial(jax.jit(run), *rows)


def verdicts(
    case: str, *, clients: int = 60, features: int = 20, rounds: int = 6, seed: int = 0, epsilon: float = 2.0
) -> Verdict:
    """What the check says about honest messages: [rounds, clients or cohorts]."""
    plan = prepared(case, clients, features, epsilon)[2]
    return program(case, clients, features, rounds)(seed, plan.noise_multiplier if plan else 0.0)
