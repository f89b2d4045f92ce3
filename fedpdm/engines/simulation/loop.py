"""The two programs of a simulation, each compiled once: many rounds in one call, and the diagnosis between calls."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedpdm.engines.simulation.measures import tail_start
from fedpdm.engines.simulation.one_round import FLOAT_COLUMNS, INTEGER_COLUMNS, one_round
from fedpdm.engines.simulation.state import DeviceData, Schedule, SimulationState, Who
from fedpdm.engines.simulation.steadiness import contrasts
from fedpdm.problem.objective import Problem, local_gradients, local_objectives, measured_on
from fedpdm.problem.stationarity import stationarity_of
from fedpdm.rounds import Setup

__all__ = ["diagnosis", "run_rounds"]

Arrays = tuple[Array, ...]


def run_rounds(
    setup: Setup, schedule: Schedule, mesh: Mesh | None, state: SimulationState, call: Any, data: DeviceData, test: Arrays
) -> Any:
    """Run the rounds of one call.

    Parameters
    ----------
    setup, schedule, mesh
        The settings, and the devices that share the participants.
    state : SimulationState
        The state before the first of these rounds.
    call : tuple
        First round, round to stop before, seed, and the participants `Who` of a chunk of rounds.
    data, test
        The clients' examples; the features [n, examples] and labels of the test examples.

    Returns
    -------
    tuple
        The state, and the columns of measurements by name, one row per round of a chunk.
    """
    s, tail = schedule, tail_start(schedule.rounds, schedule.tail)
    start, stop, seed, participants = call
    if s.stops:  # nobody knows which rounds are the last: signs are counted over the rounds of every call anew
        state = state._replace(tail_signs=jnp.zeros_like(state.tail_signs))

    def body(t: Array, carry: Any) -> Any:
        state, tables = carry
        who = Who(*(part[t - start] for part in participants))
        state, measured = one_round(setup, t, state, seed, who, data, mesh, s.attack)
        x0 = state.server.x0
        signs = jnp.stack([contrasts(x0) > 0, contrasts(x0) < 0])
        state = state._replace(
            tail_sum=state.tail_sum + jnp.where(t >= tail, x0, 0.0),
            tail_signs=state.tail_signs + jnp.where((t >= tail) | s.stops, signs, False),
        )
        wanted = ((t + 1) % s.evaluate_every == 0) | (t + 1 == s.rounds)
        measured["test_figure"] = jax.lax.cond(
            wanted, lambda x: measured_on(setup.problem, x, test[0].T, test[1]), lambda x: jnp.nan, x0
        )
        rows = [_row(measured, names, kind) for names, kind in kinds] + [state.traffic]
        return state, [table.at[t - start].set(row) for table, row in zip(tables, rows, strict=True)]

    kinds = (FLOAT_COLUMNS, jnp.float32), (INTEGER_COLUMNS, jnp.int32)
    tables = [jnp.zeros((s.chunk, len(names)), kind) for names, kind in kinds]
    tables += [jnp.zeros((s.chunk, *state.traffic.shape), jnp.int32)]
    # A loop with dynamic bounds: one compilation, and the same arithmetic, for chunks of every length.
    state, (floats, integers, traffic) = jax.lax.fori_loop(start, stop, body, (state, tables))
    columns = {name: floats[:, i] for i, name in enumerate(FLOAT_COLUMNS)} | {"traffic": traffic}
    columns |= {name: integers[:, i] for i, name in enumerate(INTEGER_COLUMNS)}
    found = state, columns
    return jax.lax.with_sharding_constraint(found, NamedSharding(mesh, PartitionSpec())) if mesh else found


def _row(measured: dict[str, Array], names: tuple[str, ...], kind: Any) -> Array:
    return jnp.stack([jnp.asarray(measured[name], kind) for name in names])


def diagnosis(setup: Setup, measures_stationarity: bool, state: SimulationState, data: DeviceData) -> Arrays:
    """Compute the objective F(x0) over all clients' training data and, if it is measured, the stationarity P.

    Parameters
    ----------
    setup, state, data
        The setup, the state, and the clients' examples.
    measures_stationarity : bool
        Whether P is computed.

    Returns
    -------
    tuple of Array
        The objective, and P.
    """
    problem, algorithm = setup.problem, setup.algorithm
    x0 = state.server.x0
    each = _objectives(problem, x0, data)
    shares = data.shares
    objective = (jnp.mean(each) if shares is None else jnp.sum(shares * each)) + problem.penalty.value(x0)
    if not measures_stationarity:
        return (objective,)
    broadcast = algorithm.broadcast(state.server)
    weight = algorithm.weight if broadcast.weight is None else broadcast.weight
    linear_terms = jax.vmap(algorithm.linear_term, (0, None), axis_size=len(each))(state.clients, broadcast)
    gradients = _gradients(problem, state.local_models, data)
    return objective, stationarity_of(
        problem, weight, linear_terms, state.local_models, x0, gradients, shares=shares, metric=algorithm.metric
    )


def _objectives(problem: Problem, x0: Array, data: DeviceData) -> Array:
    """Compute f_i(x0) of every client."""
    if data.starts is None:
        return local_objectives(problem, x0, *data.of_rows())
    one = lambda own: local_objectives(problem, x0, *own.of_rows())[0]  # noqa: E731
    return jax.lax.map(lambda client: data.at_client(client, one), jnp.arange(len(data.sizes)))


def _gradients(problem: Problem, models: Array, data: DeviceData) -> Array:
    """Compute every client's gradient at its own model."""
    if data.starts is None:
        return local_gradients(problem, models, *data.of_rows())

    def at(row: tuple[Array, Array]) -> Array:
        client, model = row
        return data.at_client(client, lambda own: local_gradients(problem, model[None], *own.of_rows())[0])

    return jax.lax.map(at, (jnp.arange(len(data.sizes)), models))
