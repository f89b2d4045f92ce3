"""The parts of a simulated run between two calls: schedule, state, participants."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.algorithms.base import Algorithm
from fedpdm.algorithms.local import Examples
from fedpdm.compression.links import Downlink
from fedpdm.engines.simulation.measures import tail_start
from fedpdm.hostile.attacks import Attack

__all__ = [
    "DeviceData",
    "Schedule",
    "SimulationState",
    "Who",
    "initial_model",
    "rows_of",
    "server_rows",
    "with_rows",
]

INITIAL_SCALE = 0.01
CHUNK = 10  # rounds in one call if nothing is diagnosed


class Schedule(NamedTuple):
    """The participants of every round, and the times of the measurements.

    Attributes
    ----------
    rounds, participants, seed
        Number of rounds, clients per round after the first, and the seed of everything random.
    all_first
        Whether every client takes part in round 0 (S_0 = all, as in the paper).
    sampling, cap
        See `fedpdm.participation.roster`.
    evaluate_every
        Rounds between test accuracies.
    diagnose_every
        Rounds between values of the objective and of the stationarity measure, which need all training data; 0: never.
        Also the number of rounds that run in one call, hence between possible checkpoints.
    tail
        The averaged model is the mean of x0 over this last share of the rounds.
    cohort_size, fixed_cohorts
        The fewest members of a cohort that shares a sum, and whether they stay the same; 0: there are no cohorts. See
        `fedpdm.participation.cohort_roster`.
    attack
        Who attacks, and how; None: nobody.
    initial_scale
        Standard deviation of the random first model.
    tolerance
        Stop at a diagnosis with P/N <= tolerance (1 + ||x0||^2); 0: never.
    newton
        Take Newton steps on the whole objective between calls, see `fedpdm.engines.simulation.newton_steps`.
    """

    rounds: int
    participants: int
    seed: int = 0
    all_first: bool = True
    sampling: str = "uniform"
    cap: int = 0
    evaluate_every: int = 1
    diagnose_every: int = 10
    tail: float = 0.5
    cohort_size: int = 0
    fixed_cohorts: bool = True
    tolerance: float = 0.0
    attack: Attack | None = None
    initial_scale: float = INITIAL_SCALE
    newton: bool = False

    @property
    def chunk(self) -> int:
        """Rounds that run in one call."""
        return self.diagnose_every or CHUNK

    @property
    def stops(self) -> bool:
        """Whether a run can end before its last round."""
        return self.tolerance > 0

    def sign_rounds(self, done: int) -> int:
        """Over how many rounds signs were counted: those of the tail, or of the last call of a run that stops."""
        if not self.stops:
            return max(done - tail_start(self.rounds, self.tail), 0)
        began = (done - 1) // self.chunk * self.chunk
        return done - max(began, int(self.all_first and done > 1))

    @property
    def measures_stationarity(self) -> bool:
        """Whether P is measured: it needs every client's own solution, which a cohort's sum hides."""
        return bool(self.diagnose_every) and not self.cohort_size


class SimulationState(NamedTuple):
    """Everything that one call passes to the next; a checkpoint holds it."""

    server: Any
    clients: Any  # client states, stacked: of all clients, of a call's participants, or of cohorts
    local_models: Array  # the last x_i of every client; without rows if nothing is diagnosed
    tail_sum: Array  # sum of x0 over the tail so far
    tail_signs: Array  # [2, *contrasts]: in how many of `Schedule.sign_rounds` each of `contrasts(x0)` was above 0, and below
    spent: Array  # per client: sum of (sensitivity / noise)^2 over its releases
    downlink: Downlink
    noise: Array  # standard deviation of the noise in x0, roughly: that of the last messages' mean
    traffic: Array  # [links, 2]: mebibytes and bytes so far
    stored: Array  # records in the store of clients, if there is one
    strikes: Array | None = None  # [clients] messages that were refused, if messages are checked
    evidence: Array | None = None  # [clients] logarithms of the evidence against members of sums, if they are traced


class DeviceData(NamedTuple):
    """The clients' examples on the device: of all clients, or of a call's participants."""

    features: Any  # [clients, rows, n]
    labels: Any  # [clients, rows]
    sizes: Any  # [clients]
    shares: Any = None  # [clients] shares of the objective; None: 1/N each
    weights: Any = None  # [clients, rows] what a row counts; None: 1
    persons: Any = None  # [clients] what sums over weighted rows are divided by
    grams: Any = None  # [clients, rows, rows] products of the client's rows, where steps are taken in their space
    starts: Any = None  # [clients] where rows are not padded: features, labels and weights are [rows], a client's from here on
    blocks: Any = ()  # then arrays [rows of a size class, 0]: their shapes are the sizes of blocks, the largest last

    def of_rows(self) -> tuple[Any, ...]:
        """Return the arguments of objectives and gradients."""
        return self.features, self.labels, self.sizes, self.weights, self.persons

    def examples(self, client: Any) -> Examples:
        """Return the examples of one client, by its position here."""
        return Examples(self.features, self.labels, self.sizes, client, self.weights, self.persons, self.grams)

    def at_client(self, client: Any, work: Callable[[Examples], Any]) -> Any:
        """`work` on one client's examples. Where rows are not padded it is compiled for every size class.

        Rows behind the client's own in its block are another client's: they have weight 0, like padding.
        """
        if self.starts is None:
            return work(self.examples(client))

        def in_block(rows: int) -> Callable[[Any], Any]:
            def run(client: Any) -> Any:
                def part(array: Any) -> Any:
                    return jax.lax.dynamic_slice_in_dim(array, self.starts[client], rows)[None]

                weights, persons = None, None
                if self.weights is not None:
                    weights, persons = part(self.weights), self.persons[client][None]
                own = (part(self.features), part(self.labels), self.sizes[client][None], jnp.int32(0))
                unpadded = self.features, self.labels, self.starts[client]
                return work(Examples(*own, weights, persons, unpadded=unpadded))

            return run

        sizes = [block.shape[0] for block in self.blocks]
        which = jnp.searchsorted(jnp.array(sizes), self.sizes[client])
        return jax.lax.switch(which, [in_block(size) for size in sizes], client)


class Who(NamedTuple):
    """The participants of rounds: [rounds, K] each; with cohorts, `rows` has one entry per cohort."""

    clients: Array
    present: Array  # which of them take part
    rows: Array  # positions of their states
    blocks: Array  # positions of their examples


def initial_model(seed: int, shape: tuple[int, int], scale: float = INITIAL_SCALE) -> Array:
    """Return the random first model, the same in every engine.

    Parameters
    ----------
    seed : int
        The seed of the run.
    shape : (int, int)
        Classes and features.
    scale : float
        Standard deviation of its coordinates.

    Returns
    -------
    Array
        The model.
    """
    key = jax.random.fold_in(jax.random.key(seed), 2**31 - 1)
    return scale * jax.random.normal(key, shape)


def server_rows(algorithm: Algorithm, server: Any) -> dict[str, Array]:
    """Return the server's table with a row per client, by its name.

    Parameters
    ----------
    algorithm, server
        The algorithm, and the server's state.

    Returns
    -------
    dict of str to Array
        The table; empty if there is none, or no row in it.
    """
    name = algorithm.server_table
    return {name: getattr(server, name)} if name and len(getattr(server, name)) else {}


def rows_of(algorithm: Algorithm, state: SimulationState) -> dict[str, Any]:
    """Return the tables with a row per client that go to the store. The models for the diagnosis are not among them.

    Parameters
    ----------
    algorithm, state
        The algorithm, and the state.

    Returns
    -------
    dict
        "clients" and "server".
    """
    return {"clients": state.clients, "server": server_rows(algorithm, state.server)}


def with_rows(state: SimulationState, rows: dict[str, Any]) -> SimulationState:
    """Return the state with other rows in these tables.

    Parameters
    ----------
    state, rows
        The state, and tables as from `rows_of`.

    Returns
    -------
    SimulationState
        The new state.
    """
    return state._replace(clients=rows["clients"], server=state.server._replace(**rows["server"]))
