"""One round of a simulation: the gather and scatter of states around `client_round` and `server_round`, and measurements."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedpdm.algorithms.base import Broadcast, Reports, element_wise_mean, replace_rows
from fedpdm.compression.links import send_down, shared_support
from fedpdm.engines.simulation.cohorts import share_bytes, work_of_cohorts
from fedpdm.engines.simulation.judging import against_members, attacked, judged, without_struck
from fedpdm.engines.simulation.measures import add_traffic
from fedpdm.engines.simulation.state import DeviceData, SimulationState, Who
from fedpdm.hostile.attacks import Attack, member_tamper, without_noise
from fedpdm.rounds import ClientResult, Setup, client_key, client_round, server_round, travel_at

__all__ = ["FLOAT_COLUMNS", "INTEGER_COLUMNS", "one_round", "takes_all_at_once"]

FLOAT_COLUMNS = ("test_figure", "nonzero_fraction", "consensus_gap", "local_steps_mean")
INTEGER_COLUMNS = ("local_steps_max", "refused", "bad_client")
MANY_COORDINATES = 2**24  # of all participants' models together


def one_round(
    setup: Setup,
    t: Array,
    state: SimulationState,
    seed: Array,
    who: Who,
    data: DeviceData,
    mesh: Mesh | None,
    attack: Attack | None = None,
) -> tuple[SimulationState, dict[str, Array]]:
    """Gather the participants' states, let them and the server do their parts, scatter the states back.

    Parameters
    ----------
    setup : Setup
        The setup.
    t, seed : Array
        The round, and the seed of the run.
    state : SimulationState
        The state before the round.
    who : Who
        The participants.
    data : DeviceData
        The clients' examples.
    mesh : Mesh or None
        The devices that share the participants.
    attack : Attack, optional
        Who attacks, and how.

    Returns
    -------
    SimulationState, dict of str to Array
        The next state, and measurements.
    """
    who = without_struck(setup, who, state)
    chosen, present, places, _ = who
    algorithm, links = setup.algorithm, setup.links
    whole = algorithm.broadcast(state.server)
    broadcast, downlink, down_bytes = send_down(links, state.downlink, whole, chosen, present, t, state.noise)
    support = shared_support(links, seed, t, broadcast.x0)
    if setup.privacy.sums:
        tamper = member_tamper(attack, broadcast.x0)
        result, sends, senders = work_of_cohorts(setup, t, state, seed, who, data, broadcast, support, tamper)
        up_bytes, index_bytes, costs = share_bytes(setup, whole.x0.size), 0, result.cost[0]
    else:
        result = _work_of_clients(setup, t, state, seed, who, data, broadcast, support, mesh, attack)
        result, sends, senders = attacked(setup, attack, t, seed, state, who, broadcast, result, support), present, chosen
        up_bytes, index_bytes, costs = result.packed.bytes, result.packed.index_bytes, result.cost
    packed, strikes, refused, evidence = result.packed, state.strikes, jnp.int32(0), state.evidence
    if strikes is not None:
        used, against = judged(setup, t, state, who, sends, broadcast, result, support)
        evidence = against_members(evidence, who, sends, against)
        strikes, refused = strikes.at[senders].add((sends & ~used).astype(jnp.int32)), jnp.sum(sends & ~used)
        sends = sends & used
    reports = Reports(packed.message, places, sends, packed.sent, travel_at(setup, t, setup.local.steps))
    if data.shares is not None:
        shares = data.shares[who.blocks]
        reports = reports._replace(shares=shares.reshape(len(places), -1).sum(axis=1))  # of a cohort: its members' together
    server = server_round(setup, state.server, broadcast, reports)

    def put_back(table: Array, rows: Array) -> Array:
        return replace_rows(table, places, rows, sends)

    finite = _finite(jax.tree.leaves(packed.message)) | ~sends
    sizes = jnp.stack([jnp.where(present, up_bytes, 0), down_bytes, jnp.where(present, index_bytes, 0)])
    gaps = jnp.sum((result.local_model - server.x0) ** 2, axis=(1, 2))
    steps = jnp.where(sends, result.info.steps, 0)
    measured = {
        "nonzero_fraction": jnp.mean(server.x0 != 0),
        "consensus_gap": jnp.sqrt(element_wise_mean(gaps, sends)),
        "local_steps_mean": element_wise_mean(steps.astype(jnp.float32), sends),
        "local_steps_max": jnp.max(steps),
        "refused": refused,
        "bad_client": jnp.where(jnp.all(finite), -1, senders[jnp.argmin(finite)]),
    }
    state = state._replace(
        server=server,
        clients=jax.tree.map(put_back, state.clients, result.state),
        local_models=put_back(state.local_models, result.local_model) if len(state.local_models) else state.local_models,
        spent=state.spent.at[chosen].add(jnp.where(present, costs, 0.0)),
        downlink=downlink,
        noise=element_wise_mean(result.noise, sends) / jnp.sqrt(jnp.maximum(jnp.sum(sends), 1)),
        traffic=add_traffic(state.traffic, sizes),
        strikes=strikes,
        evidence=evidence,
    )
    return state, measured


def _finite(leaves: list[Array]) -> Array:
    """Tell whose messages have neither NaN nor infinity. A finite sum proves it; the numbers are read only if a sum is not."""

    def each_number() -> Array:
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf), axis=(1, 2)) for leaf in leaves]), axis=0)

    sums = jnp.stack([jnp.sum(leaf, axis=(1, 2)) for leaf in leaves])
    certain = jnp.all(jnp.isfinite(sums), axis=0)
    return jax.lax.cond(jnp.all(certain), lambda: certain, each_number)


def _work_of_clients(
    setup: Setup,
    t: Array,
    state: SimulationState,
    seed: Array,
    who: Who,
    data: DeviceData,
    broadcast: Broadcast,
    support: Array | None,
    mesh: Mesh | None,
    attack: Attack | None,
) -> ClientResult:
    """Let every client of the round do its part."""

    def work(common: Any, client: Array, block: Array, client_state: Any) -> ClientResult:
        data, broadcast, support, t, seed = common
        how = {}
        if attack is not None and attack.kind == "missing-noise":
            how["stage"] = without_noise(attack.among(client))
        key = client_key(seed, t, client)
        return data.at_client(block, lambda own: client_round(setup, own, client_state, broadcast, t, key, support, **how))

    own = jax.tree.map(lambda leaf: leaf[who.rows], state.clients)
    common = data, broadcast, support, t, seed
    return _over_clients(setup, work, broadcast.x0.size * len(who.clients), mesh)(common, who.clients, who.blocks, own)


def takes_all_at_once(setup: Setup, coordinates: int) -> bool:
    """Decide whether all participants of a round are computed at once: see `_over_clients`.

    Parameters
    ----------
    setup : Setup
        The settings.
    coordinates : int
        Of all participants' models together.

    Returns
    -------
    bool
        False: one after the other.
    """
    return bool(setup.local.batch_size and coordinates < MANY_COORDINATES) or jax.default_backend() != "cpu"


def _over_clients(
    setup: Setup, work: Callable[..., ClientResult], coordinates: int, mesh: Mesh | None
) -> Callable[..., ClientResult]:
    """Run all participants at once or, on a CPU, one after the other if this saves memory.

    If a step reads all of a client's data, the data then stay in the cache for all steps of this client; at once, every step
    would read all clients' data from memory. And a model with many coordinates needs memory for one message, not for dozens.
    Several devices take equal shares of the participants.
    """
    if takes_all_at_once(setup, coordinates):
        mapped = jax.vmap(work, (None, 0, 0, 0))
    else:

        def mapped(common: Any, *columns: Any) -> ClientResult:
            return jax.lax.map(lambda row: work(common, *row), columns)

    if mesh is None:
        return mapped
    share, whole = PartitionSpec("participants"), PartitionSpec()
    shared = jax.shard_map(mapped, mesh=mesh, in_specs=(whole, share, share, share), out_specs=share, check_vma=False)
    # Gather all results on every device: the server then adds them up in the order of a single device
    return lambda *given: jax.lax.with_sharding_constraint(shared(*given), NamedSharding(mesh, whole))
