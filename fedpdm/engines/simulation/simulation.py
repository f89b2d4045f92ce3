"""The simulator: all clients in one process, mapped over with vmap, many rounds per call.

It adds nothing to the algorithm but the gather and scatter of the clients' states around `client_round` and
`server_round`, and the measurements.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from fedpdm.compression.links import first_downlink
from fedpdm.data.federation import Federation
from fedpdm.engines.simulation.client_store import ClientStore
from fedpdm.engines.simulation.cohorts import cohort_rows, state_rows
from fedpdm.engines.simulation.measures import LINKS, TestSet, make_row, paper_bits, tail_average, tail_start, traffic_totals
from fedpdm.engines.simulation.one_round import FLOAT_COLUMNS, INTEGER_COLUMNS, device_mesh, one_round
from fedpdm.engines.simulation.programs import shared_program
from fedpdm.engines.simulation.state import (
    DeviceData,
    Schedule,
    SimulationState,
    Who,
    initial_model,
    rows_of,
    server_rows,
    with_rows,
)
from fedpdm.engines.simulation.steadiness import contrasts, steadiness
from fedpdm.errors import ConfigError, DivergedError
from fedpdm.participation import Roster, cohort_roster, roster
from fedpdm.privacy.plan import Plan
from fedpdm.problem.objective import accuracy, local_objectives
from fedpdm.rounds import Setup
from fedpdm.theory import stationarity

__all__ = ["ReleaseLedger", "Roster", "Schedule", "Simulation", "SimulationState"]

LARGE = 2**30  # bytes: what clients keep, or hold, beyond this is brought in for the participants of a call only

Arrays = tuple[Array, ...]


class ReleaseLedger(Protocol):
    """What a simulation asks before every release; it is open (`with`) while the simulation runs."""

    def grant(self, start: int, roster: Roster) -> Roster:
        """Record the releases of the rounds from `start` on, before they are computed; returns who may take part."""
        ...

    def summary(self) -> dict[str, Any]:
        """The guarantee, from what was recorded."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Simulation:
    """A federated run that advances in chunks of rounds.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpdm.algorithms import LocalPlan, fedpdm
    >>> from fedpdm.data import federation_from_arrays
    >>> from fedpdm.problem import Problem, penalties, softmax
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(40, 2)).astype("float32")
    >>> y = (x[:, 0] > 0).astype("int32")
    >>> federation = federation_from_arrays([(x[:20], y[:20]), (x[20:], y[20:])], x, y)
    >>> setup = Setup(Problem(softmax(), penalties.l1(0.001)), fedpdm(rho=1.0), LocalPlan(5, 0, 0.5))
    >>> simulation = Simulation(setup, federation, Schedule(rounds=30, participants=2))
    >>> rows = list(simulation.run())
    >>> rows[-1]["round"], rows[-1]["test_accuracy"] > 0.9
    (30, True)
    """

    def __init__(
        self,
        setup: Setup,
        federation: Federation,
        schedule: Schedule,
        plan: Plan | None = None,
        shares: np.ndarray | None = None,
        *,
        ledger: ReleaseLedger | None = None,
    ):
        _check(setup, federation, schedule)
        self.setup, self.federation, self.plan, self.shares, self.ledger = setup, federation, plan, shares, ledger
        self.compile_seconds, self.compilations = 0.0, 0
        self._compiled: dict[object, Callable[..., Any]] = {}
        self._store: ClientStore | None = None
        self._mesh = None if schedule.cohort_size else device_mesh(schedule, federation.clients)
        self._decide_what_stays(schedule)
        self._data = DeviceData((), (), ()) if self._brings_data else self._on_device(slice(None))
        self._test = self._everywhere((jnp.asarray(federation.test_features), jnp.asarray(federation.test_labels)))
        self._begin(schedule)

    def _decide_what_stays(self, s: Schedule) -> None:
        """Whether all clients' states, and all their data, are kept on the device: if they are not too large for it."""
        federation, window = self.federation, s.chunk * s.participants
        one = sum(4 * leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self._first_rows, s.seed)))
        self._stores = one * federation.clients > LARGE and window < federation.clients and not s.cohort_size
        large = type(federation.features) is not np.ndarray or federation.features.nbytes > LARGE
        self._brings_data = large and window < federation.clients
        if (self._stores or self._brings_data) and (s.all_first or s.diagnose_every):
            what = "rounds.all_first=true" if s.all_first else f"metrics.diagnose_every={s.diagnose_every}"
            raise ConfigError(
                f"{federation.clients} clients with {one} bytes of state each are brought in when they take part, but {what} "
                "needs all of them at once: set rounds.all_first=false and metrics.diagnose_every=0."
            )

    def _on_device(self, clients: Any) -> DeviceData:
        federation = self.federation
        data = DeviceData(
            federation.features, federation.labels, federation.sizes, self.shares, federation.weights, federation.persons
        )
        return self._everywhere(DeviceData(*(None if a is None else jnp.asarray(a[clients]) for a in data)))

    def _everywhere(self, values: Any) -> Any:
        """The same on every device, if there are several."""
        return jax.device_put(values, NamedSharding(self._mesh, PartitionSpec())) if self._mesh else values

    @property
    def devices(self) -> int:
        """How many devices share the participants of a round."""
        return self._mesh.size if self._mesh else 1

    def restart(self, seed: int) -> None:
        """Begin again with another seed; what was compiled serves again.

        A simulation with a ledger refuses: the ledger would take the new releases for the old ones.
        """
        if self.ledger:
            raise ConfigError(
                f"A simulation with a ledger cannot restart with seed {seed}: build another one, with another job."
            )
        self._begin(self.schedule._replace(seed=seed))

    def _begin(self, schedule: Schedule) -> None:
        federation, s = self.federation, schedule
        self.schedule, self.round, self.converged = schedule, 0, False
        how: dict[str, Any] = {"clients": federation.clients, "participants": s.participants, "seed": s.seed}
        how |= {"rounds": s.rounds, "all_first": s.all_first, "cap": s.cap}
        if s.cohort_size:
            self._roster = cohort_roster(s.sampling, size=s.cohort_size, fixed=s.fixed_cohorts, **how)
        else:
            self._roster = roster(s.sampling, **how)
        self.state = self._initial_state()

    @property
    def done(self) -> bool:
        return self.round >= self.schedule.rounds or self.converged

    @property
    def model(self) -> np.ndarray:
        """The global model x0."""
        return np.asarray(self.state.server.x0)

    @property
    def averaged_model(self) -> np.ndarray:
        """The mean of x0 over the tail of the rounds (x0 itself before the tail begins)."""
        return tail_average(self.state.tail_sum, self.model, self.round, self._tail_start)

    def run(self) -> Iterator[dict[str, Any]]:
        """Train to the end; yields one row of measurements per round."""
        while not self.done:
            yield from self.advance()

    def advance(self) -> list[dict[str, Any]]:
        """Run to the next boundary (a multiple of `diagnose_every`); returns one row per round.

        Raises
        ------
        DivergedError
            When a message or the model became NaN or infinite; the state is then of no use any more.
        """
        s = self.schedule
        start = self.round
        first = s.all_first and start == 0
        stop = 1 if first else min((start // s.chunk + 1) * s.chunk, s.rounds)
        chosen, present = self._who(start, stop)
        who, data, state = self._bring_in(chosen, present)
        call = (jnp.int32(start), jnp.int32(stop), jnp.uint32(s.seed), who)
        state, call = self._everywhere((state, call))
        advance = self._compile(("rounds", chosen.shape[1]), self._run_rounds, state, call, data, self._test)
        state, measured = advance(state, call, data, self._test)
        self.state = self._take_out(state, chosen)
        measured = {name: np.asarray(values) for name, values in measured.items()}
        self._stop_if_diverged(measured["bad_client"], start, stop)
        self.round = stop
        rows = [self._row(t, measured, start) for t in range(start, stop)]
        if s.diagnose_every:
            found = self.diagnose()
            rows[-1] |= found
            self._stop_if_converged(found.get("stationarity", math.inf))
        return rows

    def _stop_if_converged(self, stationarity: float) -> None:
        """P is a sum over clients; models far from zero have larger steps."""
        limit = self.schedule.tolerance * self.federation.clients * (1 + float(np.sum(self.model**2)))
        self.converged = stationarity <= limit and self.schedule.tolerance > 0

    def _bring_in(self, chosen: np.ndarray, present: np.ndarray) -> tuple[Who, DeviceData, SimulationState]:
        """Where the participants of a call find their states and examples, the examples, and the state to begin with."""
        clients = jnp.asarray(chosen)
        if not (self._stores or self._brings_data):
            return Who(clients, jnp.asarray(present), self._rows(chosen, clients), clients), self._data, self.state
        window = np.unique(chosen)
        places = jnp.asarray(np.searchsorted(window, chosen).astype(np.int32))
        window = np.pad(window, (0, chosen.size - len(window)), mode="edge")  # always as many, for one compilation
        state = self.state
        if self._store:
            state = with_rows(state, jax.tree.map(jnp.asarray, self._store.read(window)))
        data = self._on_device(window) if self._brings_data else self._data
        rows, blocks = (places if moved else clients for moved in (self._stores, self._brings_data))
        return Who(clients, jnp.asarray(present), self._rows(chosen, rows), blocks), data, state

    def _rows(self, chosen: np.ndarray, rows: Array) -> Array:
        """Where states are: at these rows, or, of cohorts, at a row per cohort."""
        s = self.schedule
        return jnp.asarray(cohort_rows(s, self.federation.clients, chosen)) if s.cohort_size else rows

    def _take_out(self, state: SimulationState, chosen: np.ndarray) -> SimulationState:
        """Store the rows of a call's participants; what is left is small."""
        if not self._store:
            return state
        window, rows = np.unique(chosen), rows_of(self.setup.algorithm, state)
        self._store.append(window, jax.tree.map(np.asarray, rows))
        return with_rows(state, jax.tree.map(lambda leaf: leaf[:0], rows))._replace(stored=jnp.int32(self._store.length))

    def sync(self) -> None:
        """Before the state is kept for later: make sure that what it relies on is on disk."""
        if self._store:
            self._store.sync()

    @property
    def _measures(self) -> bool:
        """Whether stationarity is measured: it needs every client's own solution, which a sum does not show."""
        return bool(self.schedule.diagnose_every) and not self.schedule.cohort_size

    def diagnose(self) -> dict[str, float]:
        """Objective F(x0) and stationarity measure P, over all clients' training data; of cohorts the objective alone."""
        diagnose = self._compile("diagnose", self._diagnose, self.state, self._data)
        names = ("objective", "stationarity") if self._measures else ("objective",)
        found = zip(names, diagnose(self.state, self._data), strict=True)
        return {name: float(f"{value:.7g}") for name, value in found}

    def restore(self, state: SimulationState, round_index: int, store: Path | None = None) -> None:
        """Go on from an earlier state: after `round_index` rounds.

        `store` is the file of what clients keep where they are too many; it is the one that the state was made with, and from
        now on in use.
        """
        self.state = jax.tree.map(jnp.asarray, state)
        if self._store:
            if store:
                self._store.close()
                self._store = self._open_store(store)
            self._store.cut(int(self.state.stored))
        self.round = round_index
        if round_index and self.schedule.tolerance:
            self._stop_if_converged(self.diagnose().get("stationarity", math.inf))
        self._decide(0, round_index)

    def _open_store(self, path: Path | None = None) -> ClientStore:
        first = jax.tree.map(np.asarray, self._first_rows(self.schedule.seed))
        return ClientStore(self.federation.clients, first, path)

    def taken_part(self) -> np.ndarray:
        """Participations of every client so far."""
        counts = np.zeros(self.federation.clients, int)
        for chosen, present in self._roster[: self.round]:
            counts[chosen[present]] += 1
        return counts

    def _decide(self, start: int, stop: int) -> None:
        """Settle who takes part in rounds start..stop-1."""
        if self.ledger:
            self._roster[start:stop] = self.ledger.grant(start, self._roster[start:stop])

    def _who(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Chosen clients and who of them takes part, for rounds start..stop-1, padded to the length of a chunk."""
        self._decide(start, stop)
        rows = self._roster[start:stop]
        rows += [rows[-1]] * (self.schedule.chunk - len(rows))
        return np.stack([chosen for chosen, _ in rows]), np.stack([present for _, present in rows])

    @property
    def test(self) -> TestSet:
        """The examples that the model is tested with."""
        return TestSet(*self._test)

    def test_accuracy(self, model: np.ndarray) -> float:
        """Test accuracy of any model of this problem."""
        return self.test.accuracy(self.setup.problem, model)

    def steadiness(self) -> dict[str, np.ndarray]:
        """How far every coefficient can be trusted: see `fedpdm.engines.simulation.steadiness`."""
        count = max(self.round - self._tail_start, 0)
        local, signs = np.asarray(self.state.local_models), np.asarray(self.state.tail_signs)
        return steadiness(self.model, local, signs, count, float(self.state.noise))

    def traffic(self) -> dict[str, int]:
        """Bytes so far, as encoded: "uplink", "downlink", and "index" for the indices within the uplink."""
        return traffic_totals(np.asarray(self.state.traffic))

    @property
    def _tail_start(self) -> int:
        return tail_start(self.schedule.rounds, self.schedule.tail)

    def _first_model(self, seed: Any) -> Array:
        initial = self.setup.problem.loss.initial
        return initial() if initial else initial_model(seed, (self.federation.classes, self.federation.features.shape[2]))

    def _first_rows(self, seed: Any) -> dict[str, Any]:
        """All that is kept of one client before it takes part: see `rows_of`."""
        x0, algorithm = self._first_model(seed), self.setup.algorithm
        rows = server_rows(algorithm, algorithm.init_server(x0, 1))
        return {"clients": algorithm.init_client(x0), "server": {name: table[0] for name, table in rows.items()}}

    def _initial_state(self) -> SimulationState:
        x0 = self._first_model(self.schedule.seed)
        if self._stores:
            self._store = self._open_store()
        state = self._compile("begin", self._state_at, x0)(x0)
        return jax.tree.map(jnp.array, state)  # own buffers: the state is donated to every call

    def _state_at(self, x0: Array) -> SimulationState:
        """The state to begin with; compiled, so that rows that are cut off again never exist."""
        clients, algorithm = self.federation.clients, self.setup.algorithm
        rows = state_rows(self.schedule, clients)
        stays = 0 if self._stores else rows
        server = algorithm.init_server(x0, rows)
        return SimulationState(
            server._replace(**{name: table[:stays] for name, table in server_rows(algorithm, server).items()}),
            clients=jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (stays, *leaf.shape)), algorithm.init_client(x0)),
            local_models=jnp.broadcast_to(x0, (clients if self._measures else 0, *x0.shape)),
            tail_sum=jnp.zeros_like(x0),
            tail_signs=jnp.zeros((2, *contrasts(x0).shape), jnp.int32),
            spent=jnp.zeros(clients),
            downlink=first_downlink(algorithm.broadcast(server), clients),
            noise=jnp.float32(0.0),
            traffic=jnp.zeros((len(LINKS), 2), jnp.int32),
            stored=jnp.int32(0),
        )

    def _run_rounds(self, state: SimulationState, call: Arrays, data: DeviceData, test: Arrays) -> Any:
        s, tail_start = self.schedule, self._tail_start
        start, stop, seed, participants = call

        def body(t: Array, carry: Any) -> Any:
            state, columns = carry
            who = Who(*(part[t - start] for part in participants))
            state, measured = one_round(self.setup, t, state, seed, who, data, self._mesh)
            x0 = state.server.x0
            signs = jnp.stack([contrasts(x0) > 0, contrasts(x0) < 0])
            state = state._replace(
                tail_sum=state.tail_sum + jnp.where(t >= tail_start, x0, 0.0),
                tail_signs=state.tail_signs + jnp.where(t >= tail_start, signs, False),
            )
            wanted = ((t + 1) % s.evaluate_every == 0) | (t + 1 == s.rounds)
            measured["test_accuracy"] = jax.lax.cond(
                wanted, lambda x: accuracy(self.setup.problem, x, test[0], test[1]), lambda x: jnp.nan, x0
            )
            measured["traffic"] = state.traffic
            columns = {name: columns[name].at[t - start].set(measured[name]) for name in columns}
            return state, columns

        columns = {name: jnp.zeros(s.chunk) for name in FLOAT_COLUMNS}
        columns |= {name: jnp.zeros(s.chunk, jnp.int32) for name in INTEGER_COLUMNS}
        columns["traffic"] = jnp.zeros((s.chunk, *state.traffic.shape), jnp.int32)
        # A loop with dynamic bounds: one compilation, and the same arithmetic, for chunks of every length.
        found = jax.lax.fori_loop(start, stop, body, (state, columns))
        return jax.lax.with_sharding_constraint(found, NamedSharding(self._mesh, PartitionSpec())) if self._mesh else found

    def _diagnose(self, state: SimulationState, data: DeviceData) -> tuple[Array, ...]:
        problem, algorithm = self.setup.problem, self.setup.algorithm
        x0 = state.server.x0
        each = local_objectives(problem, x0, *data.of_rows())
        shares = data.shares
        objective = (jnp.mean(each) if shares is None else jnp.sum(shares * each)) + problem.penalty.value(x0)
        if not self._measures:
            return (objective,)
        broadcast = algorithm.broadcast(state.server)
        weight = algorithm.weight if broadcast.weight is None else broadcast.weight
        linear_terms = jax.vmap(algorithm.linear_term, (0, None), axis_size=self.federation.clients)(state.clients, broadcast)
        return objective, stationarity(
            problem, weight, linear_terms, state.local_models, x0, *data.of_rows(), shares=shares, metric=algorithm.metric
        )

    def _compile(self, name: object, function: Callable[..., Any], *args: Any) -> Callable[..., Any]:
        """Compile ahead of time, once, so that compile time and run time can be told apart."""
        if name not in self._compiled:
            program = shared_program(function, args, donate=(0,) if function == self._run_rounds else ())
            self._compiled[name] = program.call
            self.compile_seconds += program.seconds
            self.compilations += program.compiled
        return self._compiled[name]

    def _stop_if_diverged(self, bad_client: np.ndarray, start: int, stop: int) -> None:
        bad = np.flatnonzero(bad_client[: stop - start] >= 0)
        if len(bad):
            raise DivergedError(
                f"The message of client {bad_client[bad[0]]} in round {start + bad[0] + 1} holds NaN or infinity: "
                f"training diverged. Lower local.step_size={self.setup.local.step_size} and start again."
            )

    def _row(self, t: int, measured: dict[str, np.ndarray], start: int) -> dict[str, Any]:
        integers = {name: int(measured[name][t - start]) for name in INTEGER_COLUMNS if name != "bad_client"}
        return make_row(
            {"round": t + 1, "participants": int(self._roster[t][1].sum()), **integers},
            {name: measured[name][t - start].item() for name in FLOAT_COLUMNS},
            traffic_totals(measured["traffic"][t - start]),
            paper_bits(self.setup.links, self.state.server.x0.size, t + 1, self.schedule.participants),
        )


def _check(setup: Setup, federation: Federation, schedule: Schedule) -> None:
    clients = federation.clients
    if not 1 <= schedule.participants <= clients:
        raise ConfigError(f"Expected 1 <= rounds.participants={schedule.participants} <= {clients}, the number of clients.")
    if schedule.rounds < 1:
        raise ConfigError(f"Expected rounds.total={schedule.rounds} >= 1.")
    if setup.local.steps < 1:
        raise ConfigError(f"Expected local.steps={setup.local.steps} >= 1.")
