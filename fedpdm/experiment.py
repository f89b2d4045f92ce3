"""From settings to a finished run."""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.algorithms import ALGORITHMS, Algorithm, LocalPlan
from fedpdm.compression.indices import entropy_bits
from fedpdm.compression.links import Links, support_radius
from fedpdm.compression.sparsify import kept
from fedpdm.config import Config, digest
from fedpdm.data import Federation
from fedpdm.data.prepare import build_federation, radius_of, settled
from fedpdm.data.schema import to_toml
from fedpdm.engines.simulation import Schedule, Simulation
from fedpdm.errors import ConfigError, UserError
from fedpdm.participation import fair_share
from fedpdm.privacy.accounting import paper_round_epsilon, sampled_epsilon
from fedpdm.privacy.books import open_books
from fedpdm.privacy.mechanism import paper
from fedpdm.privacy.plan import Plan, choose_mode, plan_sound
from fedpdm.privacy.sensitivity import Curvature
from fedpdm.problem import LOSSES, Problem, penalties
from fedpdm.problem.penalties import Penalty
from fedpdm.rounds import Setup
from fedpdm.runs import RunFolder

__all__ = ["build_federation", "settled", "build_setup", "build_simulation", "run"]

CHECKPOINT_SECONDS = 2.0
PAPER_CLIP = 1.0  # the G of Theorem 1, for which the paper gives no value

SCHEMA_COMMENT = "The columns that the model of this run was trained on; `fedpdm predict` encodes new rows by it."

OnRows = Callable[[list[dict[str, Any]]], None]


def build_penalty(config: Config, clients: int) -> Penalty:
    """The penalty h on the mean objective: with penalty_scale "sum" it is divided by the number of clients."""
    p = config.problem
    options: dict[str, Any] = {"strength": p.gamma}
    match p.penalty:
        case "none":
            return penalties.none()
        case "box":
            options = {"lower": p.penalty_lower, "upper": p.penalty_upper}
        case "elastic-net":
            options["mix"] = p.penalty_mix
        case "mcp" | "scad":
            options["concavity"] = p.penalty_concavity
    penalty = penalties.PENALTIES[p.penalty](**options)
    return penalties.scaled(penalty, 1 / clients) if p.penalty_scale == "sum" else penalty


def build_algorithm(config: Config) -> Algorithm:
    a = config.algorithm
    options = {
        "fedavg": {},
        "fedprox": {"mu": a.mu},
        "scaffold": {},
        "feddyn": {"alpha": a.alpha},
        "fedpdm": {"rho": a.rho, "server_rule": a.server_rule},
    }
    return ALGORITHMS[a.name](**options[a.name])


def build_setup(config: Config, federation: Federation) -> tuple[Setup, Plan | None]:
    """Problem, algorithm, local work and mechanism of these settings; the plan is that of the sound mechanism."""
    config = settled(config, federation)
    setup = plain_setup(config, federation.clients, lambda: float(np.linalg.norm(federation.features, axis=2).max()))
    if config.privacy.mechanism == "paper":
        return with_paper_mechanism(config, setup, federation), None
    if config.privacy.mechanism == "sound":
        return with_sound_mechanism(config, setup, int(federation.sizes.min()))
    return setup, None


def plain_setup(config: Config, clients: int, largest_norm: Callable[[], float]) -> Setup:
    """Problem, algorithm and local work of these settings, without a mechanism."""
    local, algorithm, p = LocalPlan(**config.local.model_dump()), build_algorithm(config), config.problem
    problem = Problem(LOSSES[p.loss](), build_penalty(config, clients), p.beta, p.penalty_by)
    return Setup(problem, algorithm, local, links=build_links(config, largest_norm))


def build_links(config: Config, largest_norm: Callable[[], float]) -> Links:
    """Without a bound on the features' norms, their largest norm is taken: then no support cuts more than a share of it."""
    c = config.compression
    links = Links(**c.model_dump())
    if not links.has_support:
        return links
    radius = radius_of(config) or largest_norm()
    return links._replace(radius=support_radius(c.kind, c.uplink, radius))


def with_paper_mechanism(config: Config, setup: Setup, federation: Federation) -> Setup:
    """Theorems 1 and 2; the latter needs Q b/|D_i| < 1 for every client."""
    p, r, local, smallest = config.privacy, config.rounds, setup.local, int(federation.sizes.min())
    paper_round_epsilon(
        p.epsilon or math.inf, local.steps, local.batch_size, smallest, r.participants, federation.clients, r.total
    )
    clip = p.clip or PAPER_CLIP
    privacy = paper(
        rho=setup.algorithm.weight,
        clip=clip,
        epsilon=p.epsilon or math.inf,
        delta=p.delta,
        batch_size=local.batch_size,
        share=config.rounds.participants / federation.clients,
        rounds=config.rounds.total,
    )
    return setup._replace(local=local._replace(batch_clip=clip), privacy=privacy)


def with_sound_mechanism(config: Config, setup: Setup, smallest_client: int) -> tuple[Setup, Plan]:
    """Clip, noise and participations from the budget alone."""
    p, r, radius = config.privacy, config.rounds, radius_of(config) or 1.0
    mode = choose_mode(setup.local, p.mode)
    if setup.problem.penalty_by == "subgradient" and mode not in ("linearised", "every-step"):
        raise ConfigError(
            'problem.penalty_by="subgradient" puts steps that jump at zero into the local solve, for which '
            f'privacy.mode={mode!r} has no bound: use problem.penalty_by="prox", or privacy.mode="linearised" or "every-step".'
        )
    own = setup.problem.loss.gradient_bound(radius)
    clip = min(p.clip or own / 2, own)
    seen = setup.links.radius if setup.links.has_support else radius
    if mode == "batch-clipped":
        setup = setup._replace(local=setup.local._replace(batch_clip=clip))
    else:
        loss = LOSSES[config.problem.loss](clip=clip / own)
        setup = setup._replace(
            problem=setup.problem._replace(loss=loss), local=setup.local._replace(linearised=mode == "linearised")
        )
        clip *= seen / radius  # of the part of the gradient that the support lets through
    share = fair_share(rounds=r.total, clients=config.data.clients, participants=r.participants, all_first=r.all_first)
    plan = plan_sound(
        epsilon=p.epsilon or math.inf,
        delta=p.delta,
        relation=p.relation,
        participations=p.participations or share,
        mode=mode,
        clip=clip,
        curvature=Curvature(setup.algorithm.weight, setup.problem.loss.smoothness(seen), config.problem.beta),
        local=setup.local,
        smallest_client=smallest_client,
    )
    return setup._replace(privacy=plan.privacy), plan


def build_simulation(config: Config, federation: Federation) -> Simulation:
    """The simulator, ready to run these settings on this federation."""
    config = settled(config, federation)
    r = config.rounds
    setup, plan = build_setup(config, federation)
    if plan:
        require_radius(federation, radius_of(config) or 1.0)
    schedule = Schedule(
        rounds=r.total,
        participants=r.participants,
        seed=config.seed,
        all_first=r.all_first,
        sampling=r.sampling,
        cap=plan.participations if plan else 0,
        **config.metrics.model_dump(),
    )
    return Simulation(setup, federation, schedule, plan)


def require_radius(federation: Federation, radius: float) -> None:
    """Refuse features beyond the radius: the sensitivity bounds would not hold for them."""
    largest = float(np.sqrt((federation.features.astype(np.float64) ** 2).sum(axis=2).max()))
    if not largest <= radius * (1 + 1e-6):
        raise ConfigError(
            f"An example's features have norm {largest:.6g}, above the radius {radius:g} that the privacy guarantee "
            "assumes: cut them with fedpdm.data.clip_norms first, or raise data.radius."
        )


def run(config: Config, folder: RunFolder, simulation: Simulation, on_rows: OnRows | None = None) -> dict[str, Any]:
    """Train, from the folder's checkpoint if there is one, and return the summary that is also written there."""
    if folder.manifest()["data_checksums"] != simulation.federation.checksums:
        raise UserError(f"The data of {folder.path} differ from those that the run began with: cannot go on.")
    if simulation.federation.schema:
        folder.keep_schema(to_toml(simulation.federation.schema, SCHEMA_COMMENT))
    with open_books(folder.path / "ledger.sqlite", simulation, job=digest(config)) as books:
        seconds = _train(folder, simulation, digest(config), on_rows)
        summary = summarise(config, simulation, folder, seconds) | books.summary()
    federation = simulation.federation
    models = {"model": simulation.model, "averaged_model": simulation.averaged_model}
    about = {"data": config.data.name, "loss": config.problem.loss}
    names = {"class_names": federation.class_names, "feature_names": federation.feature_names}
    folder.finish(models, about | names, summary)
    return summary


def _train(folder: RunFolder, simulation: Simulation, name: str, on_rows: OnRows | None) -> float:
    """Advance to the end, keeping rows and checkpoints; returns the seconds that it took."""
    checkpoint = folder.load_checkpoint(simulation.state, name)
    if checkpoint:
        simulation.restore(*checkpoint)
    began = saved = time.perf_counter()
    while not simulation.done:
        rows = simulation.advance()
        folder.append(rows)
        if on_rows:
            on_rows(rows)
        if time.perf_counter() - saved > CHECKPOINT_SECONDS or simulation.done:
            folder.save_checkpoint(simulation.state, simulation.round, name)
            saved = time.perf_counter()
    return time.perf_counter() - began


def summarise(config: Config, simulation: Simulation, folder: RunFolder, seconds: float) -> dict[str, Any]:
    """The run in a few numbers (see docs/run-folder.md)."""
    last = {key: value for row in folder.rows() for key, value in row.items()}
    summary = {
        "test_accuracy": round(simulation.test_accuracy(simulation.model), 7),
        "test_accuracy_averaged": round(simulation.test_accuracy(simulation.averaged_model), 7),
        "objective": last["objective"],
        "nonzero_fraction": last["nonzero_fraction"],
        "stationarity": last["stationarity"],
        "rounds": simulation.round,
        "seconds": round(seconds - simulation.compile_seconds, 3),
        "compile_seconds": round(simulation.compile_seconds, 3),
        **traffic_summary(config, simulation),
        "mechanism": config.privacy.mechanism,
        "epsilon": None,
        "delta": None,
        "relation": None,
        "guarantee": "No privacy mechanism was on: this run guarantees nothing about the examples.",
    }
    if config.privacy.mechanism == "paper":
        summary |= paper_summary(config, simulation)
    summary["remark"] = remark(config, summary, simulation.federation.clients)
    return summary


def traffic_summary(config: Config, simulation: Simulation) -> dict[str, Any]:
    """Bytes as encoded, bits by the paper's formula 32 k T K, and the indices against log2 C(d, k)."""
    c, size, traffic = config.compression, simulation.model.size, simulation.traffic()
    summary: dict[str, Any] = {"uplink_bytes": traffic["uplink"], "downlink_bytes": traffic["downlink"]}
    summary |= simulation.paper_bits(config.rounds.total)
    if traffic["index"]:
        vectors = len(jax.tree.leaves(simulation.setup.algorithm.gain(jnp.float32(1.0))))
        least = entropy_bits(size, kept(c.uplink, size)) * vectors * int(simulation.taken_part().sum())
        summary["index_bits_over_entropy"] = round(8 * traffic["index"] / least, 4)
    return summary


def paper_summary(config: Config, simulation: Simulation) -> dict[str, Any]:
    """Nothing is proven: the nominal figure, and what its noise is worth if Theorem 1's sensitivity is granted."""
    p = config.privacy
    face_value = paper_face_value(simulation, p.delta)
    un_noised = config.compression.kind == "topk" and config.compression.uplink < 1
    indices = "the indices that are sent depend on values without noise, " if un_noised else ""
    return {
        "delta": p.delta,
        "relation": "add-remove",
        "epsilon_nominal": p.epsilon,
        "epsilon_face_value": face_value,
        "guarantee": (
            f"Nothing is guaranteed: epsilon = {p.epsilon:g} is nominal (Theorems 1 and 2 of the paper, add-remove). With "
            f"Theorem 1's sensitivity and the sampling of data granted, the same noise composes to epsilon = {face_value:.4g} "
            f"at delta = {p.delta:g} (PLD); but that sensitivity does not hold: the dual is un-noised private state, the "
            f"number of steps depends on the data, {indices}and participations are counted in expectation (docs/privacy.md, "
            "`fedpdm privacy audit`)."
        ),
    }


def paper_face_value(simulation: Simulation, delta: float) -> float:
    """PLD composition of the noise of the client that spent most, granted Theorem 1's sensitivity and its sampling.

    The granted sampling: a round sees a share q = Q b/|D_i| of the data, as if drawn by Poisson sampling.
    """
    spent, times = np.asarray(simulation.state.spent), simulation.taken_part()
    worst = int(spent.argmax())
    noise_multiplier = float(np.sqrt(times[worst] / spent[worst]))
    local = simulation.setup.local
    share = local.steps * local.batch_size / int(simulation.federation.sizes[worst])
    return sampled_epsilon(noise_multiplier, share, int(times[worst]), delta, "add-remove")


def remark(config: Config, summary: dict[str, Any], clients: int) -> str | None:
    """Words for a result that the numbers alone would misrepresent."""
    if summary["nonzero_fraction"] > 0:
        return None
    scale = clients if config.problem.penalty_scale == "sum" else 1
    advice = "lower problem.gamma"
    if scale == 1:
        advice += ', or set problem.penalty_scale="sum" if gamma is meant for the sum over clients'
    return (
        f"The model is zero: the penalty of strength {config.problem.gamma / scale:g} on the mean objective removed every "
        f"coordinate. It has learnt nothing and always predicts the first class: {advice}."
    )
