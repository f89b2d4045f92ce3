"""The simulator: all clients in one process, mapped over with vmap, many rounds per call.

It adds nothing to the algorithm but the gather and scatter of the clients' states around `client_round` and
`server_round`, and the measurements.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedpdm.algorithms.base import Reports, element_wise_mean, replace_rows
from fedpdm.algorithms.local import Examples
from fedpdm.compression.links import Downlink, first_downlink, send_down, shared_support
from fedpdm.compression.sparsify import kept
from fedpdm.data.federation import Federation
from fedpdm.engines.client_store import ClientStore
from fedpdm.engines.programs import shared_program
from fedpdm.errors import ConfigError, DivergedError
from fedpdm.participation import roster
from fedpdm.privacy.plan import Plan
from fedpdm.problem.objective import accuracy, local_objectives
from fedpdm.rounds import ClientResult, Setup, client_key, client_round, server_round, travel_at
from fedpdm.theory import stationarity

__all__ = ["Schedule", "Simulation", "SimulationState", "initial_model"]

INITIAL_SCALE = 0.01
FLOAT_COLUMNS = ("test_accuracy", "nonzero_fraction", "consensus_gap", "local_steps_mean")
INTEGER_COLUMNS = ("local_steps_max", "bad_client")
LINKS = ("uplink", "downlink", "index")  # what is counted: bytes each way, and those of the uplink's indices
CHUNK = 10  # rounds in one call where nothing is diagnosed
LARGE = 2**30  # bytes: what clients keep, or hold, beyond this is brought in for the participants of a call only
MANY_COORDINATES = 2**24  # of all participants' models together
MEBIBYTE = 20  # bits; totals are kept in two words, as 32 bits would not do

Arrays = tuple[Array, ...]
Roster = list[tuple[np.ndarray, np.ndarray]]  # per round: the chosen clients, and who of them takes part
# (first round, roster) -> roster: asked before anything of these rounds is computed
BeforeRelease = Callable[[int, Roster], Roster]


class Schedule(NamedTuple):
    """Who takes part when, and how often what is measured.

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

    @property
    def chunk(self) -> int:
        """Rounds that run in one call."""
        return self.diagnose_every or CHUNK


class SimulationState(NamedTuple):
    """All that must survive from one call to the next (and hence goes into a checkpoint)."""

    server: Any
    clients: Any  # client states, stacked: of all clients, or of a call's participants
    local_models: Array  # the last x_i of every client; without rows if nothing is diagnosed
    tail_sum: Array  # sum of x0 over the tail so far
    spent: Array  # per client: sum of (sensitivity / noise)^2 over its releases
    downlink: Downlink
    noise: Array  # standard deviation of the noise in x0, roughly: that of the last messages' mean
    traffic: Array  # [links, 2]: mebibytes and bytes so far
    stored: Array  # records in the store of clients, if there is one


class Who(NamedTuple):
    """The participants of rounds: [rounds, K] each."""

    clients: Array
    present: Array  # who of them takes part
    rows: Array  # where their states are
    blocks: Array  # where their examples are


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
    >>> rows = list(simulation.rows())
    >>> rows[-1]["round"], rows[-1]["test_accuracy"] > 0.9
    (30, True)
    """

    def __init__(self, setup: Setup, federation: Federation, schedule: Schedule, plan: Plan | None = None):
        _check(setup, federation, schedule)
        self.setup, self.federation, self.plan = setup, federation, plan
        self.compile_seconds, self.compilations = 0.0, 0
        self._compiled: dict[object, Callable[..., Any]] = {}
        self._store: ClientStore | None = None
        self._mesh = _mesh(schedule, federation.clients)
        self._decide_what_stays(schedule)
        self._data = () if self._brings_data else self._on_device(slice(None))
        self._test = self._everywhere((jnp.asarray(federation.test_features), jnp.asarray(federation.test_labels)))
        self._begin(schedule)

    def _decide_what_stays(self, s: Schedule) -> None:
        """Whether all clients' states, and all their data, are kept on the device: if they are not too large for it."""
        federation, window = self.federation, s.chunk * s.participants
        one = sum(4 * leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self._first_rows, s.seed)))
        self._stores = one * federation.clients > LARGE and window < federation.clients
        large = type(federation.features) is not np.ndarray or federation.features.nbytes > LARGE
        self._brings_data = large and window < federation.clients
        if (self._stores or self._brings_data) and (s.all_first or s.diagnose_every):
            what = "rounds.all_first=true" if s.all_first else f"metrics.diagnose_every={s.diagnose_every}"
            raise ConfigError(
                f"{federation.clients} clients with {one} bytes of state each are brought in when they take part, but {what} "
                "needs all of them at once: set rounds.all_first=false and metrics.diagnose_every=0."
            )

    def _on_device(self, clients: Any) -> Arrays:
        federation = self.federation
        data = federation.features, federation.labels, federation.sizes
        return self._everywhere(tuple(jnp.asarray(a[clients]) for a in data))

    def _everywhere(self, values: Any) -> Any:
        """The same on every device, if there are several."""
        return jax.device_put(values, NamedSharding(self._mesh, PartitionSpec())) if self._mesh else values

    @property
    def devices(self) -> int:
        """How many devices share the participants of a round."""
        return self._mesh.size if self._mesh else 1

    def restart(self, seed: int) -> None:
        """Begin again with another seed; what was compiled serves again."""
        self._begin(self.schedule._replace(seed=seed))

    def _begin(self, schedule: Schedule) -> None:
        federation, s = self.federation, schedule
        self.schedule, self.round = schedule, 0
        self._roster = roster(
            s.sampling,
            rounds=s.rounds,
            clients=federation.clients,
            participants=s.participants,
            seed=s.seed,
            all_first=s.all_first,
            cap=s.cap,
        )
        self.before_release: BeforeRelease | None = None
        self.state = self._initial_state()

    @property
    def done(self) -> bool:
        return self.round >= self.schedule.rounds

    @property
    def model(self) -> np.ndarray:
        """The global model x0."""
        return np.asarray(self.state.server.x0)

    @property
    def averaged_model(self) -> np.ndarray:
        """The mean of x0 over the tail of the rounds (x0 itself before the tail begins)."""
        count = self.round - self._tail_start
        return np.asarray(self.state.tail_sum) / count if count > 0 else self.model

    def rows(self) -> Iterator[dict[str, Any]]:
        """Run to the end, giving one row of measurements per round."""
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
        rows[-1] |= self.diagnose() if s.diagnose_every else {}
        return rows

    def _bring_in(self, chosen: np.ndarray, present: np.ndarray) -> tuple[Who, Arrays, SimulationState]:
        """Where the participants of a call find their states and examples, the examples, and the state to begin with."""
        clients = jnp.asarray(chosen)
        if not (self._stores or self._brings_data):
            return Who(clients, jnp.asarray(present), clients, clients), self._data, self.state
        window = np.unique(chosen)
        places = jnp.asarray(np.searchsorted(window, chosen).astype(np.int32))
        window = np.pad(window, (0, chosen.size - len(window)), mode="edge")  # always as many, for one compilation
        state = self.state
        if self._store:
            state = _with_rows(state, jax.tree.map(jnp.asarray, self._store.read(window)))
        data = self._on_device(window) if self._brings_data else self._data
        rows, blocks = (places if moved else clients for moved in (self._stores, self._brings_data))
        return Who(clients, jnp.asarray(present), rows, blocks), data, state

    def _take_out(self, state: SimulationState, chosen: np.ndarray) -> SimulationState:
        """Store the rows of a call's participants; what is left is small."""
        if not self._store:
            return state
        window, rows = np.unique(chosen), _rows(state)
        self._store.append(window, jax.tree.map(np.asarray, rows))
        return _with_rows(state, jax.tree.map(lambda leaf: leaf[:0], rows))._replace(stored=jnp.int32(self._store.length))

    def sync(self) -> None:
        """Before the state is kept for later: make sure that what it relies on is on disk."""
        if self._store:
            self._store.sync()

    def diagnose(self) -> dict[str, float]:
        """Objective F(x0) and stationarity measure P, over all clients' training data."""
        diagnose = self._compile("diagnose", self._diagnose, self.state, self._data)
        objective, measure = diagnose(self.state, self._data)
        return {"objective": float(f"{objective:.7g}"), "stationarity": float(f"{measure:.7g}")}

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
        if self.before_release:
            self._roster[start:stop] = self.before_release(start, self._roster[start:stop])

    def _who(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Chosen clients and who of them takes part, for rounds start..stop-1, padded to the length of a chunk."""
        self._decide(start, stop)
        rows = self._roster[start:stop]
        rows += [rows[-1]] * (self.schedule.chunk - len(rows))
        return np.stack([chosen for chosen, _ in rows]), np.stack([present for _, present in rows])

    def test_accuracy(self, model: np.ndarray) -> float:
        """Test accuracy of any model of this problem."""
        return float(accuracy(self.setup.problem, jnp.asarray(model), *self._test))

    def traffic(self) -> dict[str, int]:
        """Bytes so far, as encoded: "uplink", "downlink", and "index" for the indices within the uplink."""
        return _totals(np.asarray(self.state.traffic))

    def paper_bits(self, rounds: int) -> dict[str, int]:
        """Bits of the first `rounds` rounds by the paper's formula 32 k T K, each way."""
        links, size = self.setup.links, self.state.server.x0.size
        each = {"uplink": kept(links.uplink, size), "downlink": kept(links.downlink, size)}
        return {f"{link}_bits_paper": 32 * k * rounds * self.schedule.participants for link, k in each.items()}

    @property
    def _tail_start(self) -> int:
        return min(int(self.schedule.rounds * (1 - self.schedule.tail)), self.schedule.rounds - 1)

    def _first_model(self, seed: Any) -> Array:
        initial = self.setup.problem.loss.initial
        return initial() if initial else initial_model(seed, (self.federation.classes, self.federation.features.shape[2]))

    def _first_rows(self, seed: Any) -> dict[str, Any]:
        """All that is kept of one client before it takes part: see `_rows`."""
        x0, algorithm = self._first_model(seed), self.setup.algorithm
        server = algorithm.init_server(x0, 1)
        return {"clients": algorithm.init_client(x0)} | ({"memory": server.memory[0]} if _remembers(server) else {})

    def _initial_state(self) -> SimulationState:
        s, clients, algorithm = self.schedule, self.federation.clients, self.setup.algorithm
        x0 = self._first_model(s.seed)
        first, stays = self._first_rows(s.seed), 0 if self._stores else clients

        def first_server(x0: Array) -> Any:
            server = algorithm.init_server(x0, clients)
            return server._replace(memory=server.memory[:stays]) if _remembers(server) else server

        server = jax.jit(first_server)(x0)  # compiled, so that rows that are cut off again never exist
        state = SimulationState(
            server,
            clients=jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (stays, *leaf.shape)), first["clients"]),
            local_models=jnp.broadcast_to(x0, (clients if s.diagnose_every else 0, *x0.shape)),
            tail_sum=jnp.zeros_like(x0),
            spent=jnp.zeros(clients),
            downlink=first_downlink(algorithm.broadcast(server), clients),
            noise=jnp.float32(0.0),
            traffic=jnp.zeros((len(LINKS), 2), jnp.int32),
            stored=jnp.int32(0),
        )
        if self._stores:
            self._store = self._open_store()
        return jax.tree.map(jnp.array, state)  # own buffers: the state is donated to every call

    def _run_rounds(self, state: SimulationState, call: Arrays, data: Arrays, test: Arrays) -> Any:
        s, tail_start = self.schedule, self._tail_start
        start, stop, seed, participants = call

        def body(t: Array, carry: Any) -> Any:
            state, columns = carry
            who = Who(*(part[t - start] for part in participants))
            state, measured = _one_round(self.setup, t, state, seed, who, data, self._mesh)
            x0 = state.server.x0
            state = state._replace(tail_sum=state.tail_sum + jnp.where(t >= tail_start, x0, 0.0))
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

    def _diagnose(self, state: SimulationState, data: Arrays) -> tuple[Array, Array]:
        problem, algorithm = self.setup.problem, self.setup.algorithm
        x0 = state.server.x0
        objective = jnp.mean(local_objectives(problem, x0, data[0], data[1], data[2])) + problem.penalty.value(x0)
        linear_terms = jax.vmap(algorithm.linear_term, (0, None), axis_size=self.federation.clients)(
            state.clients, algorithm.broadcast(state.server)
        )
        return objective, stationarity(
            problem, algorithm.weight, linear_terms, state.local_models, x0, data[0], data[1], data[2]
        )

    def _compile(self, name: object, function: Callable[..., Any], *args: Any) -> Callable[..., Any]:
        """Compile ahead of time, once, so that compile time and run time can be told apart."""
        if name not in self._compiled:
            program = shared_program(function, args, donate=() if name == "diagnose" else (0,))
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
        row: dict[str, Any] = {"round": t + 1, "participants": int(self._roster[t][1].sum())}
        for name in (*FLOAT_COLUMNS, *INTEGER_COLUMNS):
            value = measured[name][t - start].item()
            if name != "bad_client" and value == value:  # a NaN is a measurement that was not due
                row[name] = float(f"{value:.7g}") if name in FLOAT_COLUMNS else value
        totals = _totals(measured["traffic"][t - start])
        return row | {"uplink_bytes": totals["uplink"], "downlink_bytes": totals["downlink"]} | self.paper_bits(t + 1)


def initial_model(seed: int, shape: tuple[int, int]) -> Array:
    """The random point that training begins at, the same in every engine."""
    key = jax.random.fold_in(jax.random.key(seed), 2**31 - 1)
    return INITIAL_SCALE * jax.random.normal(key, shape)


def _remembers(server: Any) -> bool:
    """Whether the server keeps a row of its own per client, which is then called its memory."""
    return hasattr(server, "memory") and len(server.memory) > 0


def _rows(state: SimulationState) -> dict[str, Any]:
    """The tables with a row per client that go to the store, without the models that are kept for the diagnosis alone."""
    return {"clients": state.clients} | ({"memory": state.server.memory} if _remembers(state.server) else {})


def _with_rows(state: SimulationState, rows: dict[str, Any]) -> SimulationState:
    server = state.server._replace(memory=rows["memory"]) if "memory" in rows else state.server
    return state._replace(clients=rows["clients"], server=server)


def _totals(traffic: np.ndarray) -> dict[str, int]:
    return {name: (int(high) << MEBIBYTE) + int(low) for name, (high, low) in zip(LINKS, traffic, strict=True)}


def _add(traffic: Array, sizes: Array) -> Array:
    """The totals `[links, 2]` with every message's bytes `[links, messages]` added."""
    half = MEBIBYTE // 2  # so that a million messages do not overflow a word
    low = traffic[:, 1] + jnp.sum(sizes & (2**half - 1), axis=1)
    middle = jnp.sum((sizes >> half) & (2**half - 1), axis=1) + (low >> half)
    high = traffic[:, 0] + jnp.sum(sizes >> MEBIBYTE, axis=1) + (middle >> half)
    return jnp.stack([high, ((middle & (2**half - 1)) << half) + (low & (2**half - 1))], axis=1)


def _one_round(
    setup: Setup, t: Array, state: SimulationState, seed: Array, who: Who, data: Arrays, mesh: Mesh | None
) -> tuple[SimulationState, dict[str, Array]]:
    """Gather the participants' states, let them and the server do their parts, scatter the states back."""
    chosen, present, places, blocks = who
    algorithm, links = setup.algorithm, setup.links
    whole = algorithm.broadcast(state.server)
    broadcast, downlink, down_bytes = send_down(links, state.downlink, whole, chosen, present, t, state.noise)
    support = shared_support(links, seed, t, broadcast.x0)

    def work(common: Any, client: Array, block: Array, client_state: Any) -> ClientResult:
        data, broadcast, support, t, seed = common
        examples = Examples(data[0], data[1], data[2], block)
        return client_round(setup, examples, client_state, broadcast, t, client_key(seed, t, client), support)

    own = jax.tree.map(lambda leaf: leaf[places], state.clients)
    common = data, broadcast, support, t, seed
    result = _over_clients(setup, work, whole.x0.size * len(chosen), mesh)(common, chosen, blocks, own)
    packed = result.packed
    reports = Reports(packed.message, places, present, packed.sent, travel_at(setup, t, setup.local.steps))
    server = server_round(setup, state.server, broadcast, reports)

    def put_back(table: Array, rows: Array) -> Array:
        return replace_rows(table, places, rows, present)

    leaves = jax.tree.leaves(packed.message)
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf), axis=(1, 2)) for leaf in leaves]), axis=0) | ~present
    sizes = jnp.stack([jnp.where(present, packed.bytes, 0), down_bytes, jnp.where(present, packed.index_bytes, 0)])
    gaps = jnp.sum((result.local_model - server.x0) ** 2, axis=(1, 2))
    steps = jnp.where(present, result.info.steps, 0)
    measured = {
        "nonzero_fraction": jnp.mean(server.x0 != 0),
        "consensus_gap": jnp.sqrt(element_wise_mean(gaps, present)),
        "local_steps_mean": element_wise_mean(steps.astype(jnp.float32), present),
        "local_steps_max": jnp.max(steps),
        "bad_client": jnp.where(jnp.all(finite), -1, chosen[jnp.argmin(finite)]),
    }
    state = state._replace(
        server=server,
        clients=jax.tree.map(put_back, state.clients, result.state),
        local_models=put_back(state.local_models, result.local_model) if len(state.local_models) else state.local_models,
        spent=state.spent.at[chosen].add(jnp.where(present, result.cost, 0.0)),
        downlink=downlink,
        noise=element_wise_mean(result.noise, present) / jnp.sqrt(jnp.maximum(jnp.sum(present), 1)),
        traffic=_add(state.traffic, sizes),
    )
    return state, measured


def _mesh(schedule: Schedule, clients: int) -> Mesh | None:
    """As many devices as the participants of every round can be shared out to evenly; None: one."""
    everybody = clients if schedule.all_first else schedule.participants
    devices = jax.devices()
    count = max(n for n in range(1, len(devices) + 1) if schedule.participants % n == 0 and everybody % n == 0)
    return Mesh(np.array(devices[:count]), ("participants",)) if count > 1 else None


def _over_clients(
    setup: Setup, work: Callable[..., ClientResult], coordinates: int, mesh: Mesh | None
) -> Callable[..., ClientResult]:
    """All participants at once, or, on a CPU, one after the other where memory is what it is about.

    Where a step reads all of a client's data, these then stay in the cache for all of its steps; at once, every step would
    stream everybody's from memory. And of models with many coordinates there need not be dozens of half-finished messages.
    Several devices take equal shares of the participants.
    """
    at_once = setup.local.batch_size and coordinates < MANY_COORDINATES
    if at_once or jax.default_backend() != "cpu":
        mapped = jax.vmap(work, (None, 0, 0, 0))
    else:

        def mapped(common: Any, *columns: Any) -> ClientResult:
            return jax.lax.map(lambda row: work(common, *row), columns)

    if mesh is None:
        return mapped
    share = PartitionSpec("participants")
    return jax.shard_map(mapped, mesh=mesh, in_specs=(PartitionSpec(), share, share, share), out_specs=share, check_vma=False)


def _check(setup: Setup, federation: Federation, schedule: Schedule) -> None:
    clients = federation.clients
    if not 1 <= schedule.participants <= clients:
        raise ConfigError(f"Expected 1 <= rounds.participants={schedule.participants} <= {clients}, the number of clients.")
    if schedule.rounds < 1:
        raise ConfigError(f"Expected rounds.total={schedule.rounds} >= 1.")
    if setup.local.steps < 1:
        raise ConfigError(f"Expected local.steps={setup.local.steps} >= 1.")
