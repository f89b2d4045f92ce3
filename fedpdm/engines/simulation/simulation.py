"""The simulator: all clients in one process, vectorised with vmap, many rounds per call.

It adds only the gather and scatter of the clients' states around `client_round` and `server_round`, and the measurements.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.data.federation import Federation
from fedpdm.engines.simulation.beginning import first_model, first_state
from fedpdm.engines.simulation.hosts import device_mesh, everywhere
from fedpdm.engines.simulation.loop import diagnosis, run_rounds
from fedpdm.engines.simulation.measures import (
    TestSet,
    add_traffic,
    figure_name,
    make_row,
    paper_bits,
    tail_average,
    tail_start,
    traffic_totals,
)
from fedpdm.engines.simulation.memory import on_device
from fedpdm.engines.simulation.newton_steps import affordable, newton_steps
from fedpdm.engines.simulation.one_round import FLOAT_COLUMNS, INTEGER_COLUMNS
from fedpdm.engines.simulation.programs import shared_program
from fedpdm.engines.simulation.state import DeviceData, Schedule, SimulationState
from fedpdm.engines.simulation.steadiness import steadiness
from fedpdm.engines.simulation.window import Window
from fedpdm.errors import ConfigError, DivergedError
from fedpdm.native import native_kernels
from fedpdm.participation import Roster, cohort_roster, roster
from fedpdm.privacy.plan import Plan
from fedpdm.rounds import Setup

__all__ = ["ReleaseLedger", "Roster", "Schedule", "Simulation", "SimulationState"]


class ReleaseLedger(Protocol):
    """A simulation asks it before every release; it is open (`with`) while the simulation runs."""

    def grant(self, start: int, roster: Roster) -> Roster:
        """Record the releases of the rounds from `start` on, before they are computed; return who may take part."""
        ...

    def summary(self) -> dict[str, Any]:
        """Return the guarantee, from the recorded releases."""
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
        self._mesh = device_mesh(schedule, federation.clients)
        self.window = Window(setup, federation, schedule, shares, self._mesh)
        self._test = everywhere((on_device(federation.test_features.T), on_device(federation.test_labels)), self._mesh)
        self._begin(schedule)

    @property
    def devices(self) -> int:
        """The number of devices that share the participants of a round."""
        return self._mesh.size if self._mesh else 1

    def restart(self, seed: int) -> None:
        """Begin again with another seed; compiled programs are used again.

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
        """Train to the end; yield one row of measurements per round."""
        while not self.done:
            yield from self.advance()

    def advance(self) -> list[dict[str, Any]]:
        """Run to the next boundary (a multiple of `diagnose_every`); return one row per round.

        Raises
        ------
        DivergedError
            If a message or the model became NaN or infinite; the state cannot be used any more.
        """
        s = self.schedule
        start = self.round
        first = s.all_first and start == 0
        stop = 1 if first else min((start // s.chunk + 1) * s.chunk, s.rounds)
        calls = start // s.chunk  # one, two, four and so on: where the steps do not reach the optimum, they cost little
        taken = self._take_newton_steps() if calls and calls & (calls - 1) == 0 else {}
        chosen, present = self._who(start, stop)
        who, data, state = self.window.bring_in(self.state, chosen, present)
        call = (jnp.int32(start), jnp.int32(stop), jnp.uint32(s.seed), who)
        state, call = everywhere((state, call), self._mesh)
        arguments = (state, call, data, self._test)
        state, measured = self._compile(("rounds", chosen.shape[1]), self._run_rounds, *arguments, donate=(0,))(*arguments)
        self.state = self.window.take_out(state, chosen)
        measured = {name: np.asarray(values) for name, values in measured.items()}
        self._stop_if_diverged(measured["bad_client"], start, stop)
        self.round = stop
        rows = self._rows(measured, start, stop)
        rows[0] |= taken
        if s.diagnose_every:
            found = self.diagnose()
            rows[-1] |= found
            self._stop_if_converged(found.get("stationarity", math.inf))
        return rows

    def _take_newton_steps(self) -> dict[str, int]:
        """Lead the model towards the optimum between two calls; return what the next row says about it."""
        setup, place = self.setup, self.setup.algorithm.placed
        if not self.schedule.newton or place is None or not affordable(self.federation, self.model.size):
            return {}
        found = newton_steps(setup.problem, self.federation, self.shares, self.model)
        each = np.full(self.federation.clients, 1 / self.federation.clients) if self.shares is None else self.shares
        mean = lambda vectors: jnp.tensordot(jnp.asarray(each, jnp.float32), vectors, 1)  # noqa: E731
        placed = place(self.state.server, jnp.asarray(found.x0), jnp.asarray(found.gradients), mean)
        if not found.reached:
            placed = self.state.server, self.state.clients
        server, clients = jax.tree.map(jnp.array, placed)  # own buffers: the state is donated to every call
        up, down = found.bytes_of_client()
        sizes = jnp.tile(jnp.array([[up], [down], [0]], jnp.int32), (1, self.federation.clients))
        self.state = self.state._replace(server=server, clients=clients, traffic=add_traffic(self.state.traffic, sizes))
        return {"newton_steps": found.steps if found.reached else 0}

    def _stop_if_converged(self, stationarity: float) -> None:
        """Stop if P is small: it is a sum over clients, and models far from zero have larger steps."""
        limit = self.schedule.tolerance * self.federation.clients * (1 + float(np.sum(self.model**2)))
        self.converged = stationarity <= limit and self.schedule.tolerance > 0

    def sync(self) -> None:
        """Make sure that the files behind the state are on disk, before the state is stored."""
        self.window.sync()

    def diagnose(self) -> dict[str, float]:
        """Compute the objective F(x0) and, without cohorts, the stationarity measure P, over all clients' training data."""
        measures, arguments = self.schedule.measures_stationarity, (self.state, self.window.data)
        diagnose = self._compile("diagnose", partial(diagnosis, self.setup, measures), *arguments)
        names = ("objective", "stationarity") if measures else ("objective",)
        found = zip(names, diagnose(*arguments), strict=True)
        return {name: float(f"{value:.7g}") for name, value in found}

    def restore(self, state: SimulationState, round_index: int, store: Path | None = None) -> None:
        """Continue from an earlier state, after `round_index` rounds.

        `store` is the file of the clients' states, if they are too many for memory. It must belong to this state, and is used
        from now on.
        """
        self.state = everywhere(jax.tree.map(jnp.asarray, state), self._mesh)
        self.window.restore(int(self.state.stored), store)
        self.round = round_index
        if round_index and self.schedule.tolerance:
            self._stop_if_converged(self.diagnose().get("stationarity", math.inf))
        self._decide(0, round_index)

    def taken_part(self) -> np.ndarray:
        """Participations of every client so far."""
        counts = np.zeros(self.federation.clients, int)
        for chosen, present in self._roster[: self.round]:
            counts[chosen[present]] += 1
        return counts

    def _decide(self, start: int, stop: int) -> None:
        """Decide who takes part in rounds start..stop-1."""
        if self.ledger:
            self._roster[start:stop] = self.ledger.grant(start, self._roster[start:stop])

    def _who(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the chosen clients and who of them takes part, for rounds start..stop-1, padded to the length of a chunk."""
        self._decide(start, stop)
        rows = self._roster[start:stop]
        rows += [rows[-1]] * (self.schedule.chunk - len(rows))
        return np.stack([chosen for chosen, _ in rows]), np.stack([present for _, present in rows])

    @property
    def test(self) -> TestSet:
        """The test examples."""
        return TestSet(self.federation.test_features, self.federation.test_labels, self.federation.test_units)

    @property
    def original_test(self) -> TestSet:
        """The test examples before a private basis; without one, those of `test`."""
        before = self.federation.original_test
        return self.test if before is None else self.test._replace(features=before)

    def test_accuracy(self, model: np.ndarray) -> float:
        """Return the test accuracy of any model of this problem, or the mean test loss if the label is a number."""
        return self.test.measure(self.setup.problem, model)

    def steadiness(self) -> dict[str, np.ndarray]:
        """Return how far every coefficient can be trusted: see `fedpdm.engines.simulation.steadiness`."""
        count = self.schedule.sign_rounds(self.round)
        local, signs = np.asarray(self.state.local_models), np.asarray(self.state.tail_signs)
        return steadiness(self.model, local, signs, count, float(self.state.noise))

    def traffic(self) -> dict[str, int]:
        """Bytes so far, as encoded: "uplink", "downlink", and "index" for the indices within the uplink."""
        return traffic_totals(np.asarray(self.state.traffic))

    @property
    def _tail_start(self) -> int:
        return tail_start(self.schedule.rounds, self.schedule.tail)

    def _initial_state(self) -> SimulationState:
        x0 = first_model(self.setup, self.federation, self.schedule.seed, self.schedule.initial_scale)
        self.window.begin(self.schedule)
        begin = partial(first_state, self.setup, self.schedule, self.federation.clients, self.window.stores)
        state = self._compile("begin", begin, x0)(x0)
        return everywhere(jax.tree.map(jnp.array, state), self._mesh)  # own buffers: the state is donated to every call

    def _run_rounds(self, state: SimulationState, call: Any, data: DeviceData, test: Any) -> Any:
        return run_rounds(self.setup, self.schedule, self._mesh, state, call, data, test)

    def _compile(
        self, name: object, function: Callable[..., Any], *args: Any, donate: tuple[int, ...] = ()
    ) -> Callable[..., Any]:
        """Compile ahead of time, once, so that compile time and run time are measured separately."""
        if name not in self._compiled:
            # the kernel has no sums; other small batches are local steps of XLA
            fuse_sums = bool(self.setup.local.batch_size) and not (self.setup.problem.loss.native and native_kernels())
            program = shared_program(function, args, donate, fuse_sums)
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

    def _rows(self, measured: dict[str, np.ndarray], start: int, stop: int) -> list[dict[str, Any]]:
        """Make the rows of these rounds, from columns as lists: to take single numbers out of arrays costs more."""
        columns = {name: values[: stop - start].tolist() for name, values in measured.items() if name != "bad_client"}
        present = [int(np.count_nonzero(here)) for _, here in self._roster[start:stop]]
        if self.state.strikes is None:
            del columns["refused"]
        whole = [name for name in INTEGER_COLUMNS if name in columns]
        names = {name: name for name in FLOAT_COLUMNS} | {"test_figure": figure_name(self.setup.problem)}
        size = self.model.size
        return [
            make_row(
                {"round": start + i + 1, "participants": present[i]} | {name: columns[name][i] for name in whole},
                {names[name]: columns[name][i] for name in FLOAT_COLUMNS},
                traffic_totals(columns["traffic"][i]),
                paper_bits(self.setup.links, size, start + i + 1, self.schedule.participants),
            )
            for i in range(stop - start)
        ]


def _check(setup: Setup, federation: Federation, schedule: Schedule) -> None:
    clients = federation.clients
    if not 1 <= schedule.participants <= clients:
        raise ConfigError(f"Expected 1 <= rounds.participants={schedule.participants} <= {clients}, the number of clients.")
    if schedule.rounds < 1:
        raise ConfigError(f"Expected rounds.total={schedule.rounds} >= 1.")
    if setup.local.steps < 1:
        raise ConfigError(f"Expected local.steps={setup.local.steps} >= 1.")
