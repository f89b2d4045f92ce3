"""The clients on the device: all of them, or the participants of a call if all would be too large."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from fedpdm.algorithms.dual_space import gram_matrices, pays, serves
from fedpdm.data.federation import Federation
from fedpdm.data.ragged import Ragged, real_rows, size_classes
from fedpdm.engines.simulation.beginning import first_rows
from fedpdm.engines.simulation.client_store import ClientStore
from fedpdm.engines.simulation.cohorts import cohort_rows
from fedpdm.engines.simulation.hosts import everywhere
from fedpdm.engines.simulation.memory import on_device
from fedpdm.engines.simulation.one_round import takes_all_at_once
from fedpdm.engines.simulation.state import DeviceData, Schedule, SimulationState, Who, rows_of, with_rows
from fedpdm.errors import ConfigError
from fedpdm.rounds import Setup

__all__ = ["LARGE", "Window"]

LARGE = 2**30  # bytes: larger states or examples are loaded for the participants of a call only


class Window:
    """Loads examples and states of a call's participants to the device, and stores the states again.

    Parameters
    ----------
    setup, federation, schedule
        The settings, the clients' examples, and the participants of every round.
    shares : ndarray or None
        Every client's share of the objective; None: 1/N.
    mesh : Mesh or None
        The devices that share the participants; None: one.

    Attributes
    ----------
    brings_data : bool
        Whether the examples of a call's participants are loaded for the call; else all examples stay on the device.
    stores : bool
        Whether the clients' states are in a store; else they stay in the state.
    store : ClientStore or None
        That store, after `begin`.
    """

    def __init__(
        self, setup: Setup, federation: Federation, schedule: Schedule, shares: np.ndarray | None, mesh: Mesh | None
    ) -> None:
        self.setup, self.federation, self.schedule, self.shares, self.mesh = setup, federation, schedule, shares, mesh
        self.store: ClientStore | None = None
        s, calls = schedule, schedule.chunk * schedule.participants
        one = sum(4 * leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self._first_rows, s.seed)))
        self.stores = one * federation.clients > LARGE and calls < federation.clients and not s.cohort_size
        known = type(federation.features) in (np.ndarray, Ragged)
        large = not known or federation.features.nbytes > LARGE
        self.brings_data = large and calls < federation.clients
        if (self.stores or self.brings_data) and (s.all_first or s.diagnose_every):
            what = "rounds.all_first=true" if s.all_first else f"metrics.diagnose_every={s.diagnose_every}"
            raise ConfigError(
                f"{federation.clients} clients with {one} bytes of state each are loaded when they take part, but {what} "
                "needs all of them at once: set rounds.all_first=false and metrics.diagnose_every=0."
            )
        if (self.stores or self.brings_data) and (s.attack or setup.band):
            raise ConfigError(
                f"Attackers and the check of messages need all {federation.clients} clients in memory: take fewer clients, or "
                "set attack.kind=none."
            )
        if self.stores and setup.algorithm.whole_table:
            raise ConfigError(
                f"{federation.clients} clients with {one} bytes of state each are loaded when they take part, but the "
                "aggregate needs every client's last message: set algorithm.aggregate=mean, or take an algorithm that keeps no "
                "state (fedavg, fedprox)."
            )
        self.data = DeviceData((), (), ()) if self.brings_data else self._with_grams(self._on_device(slice(None)))

    def begin(self, schedule: Schedule) -> None:
        """Begin with this schedule and the clients' first states."""
        self.schedule = schedule
        if self.stores:
            self.store = self._open()

    def bring_in(
        self, state: SimulationState, chosen: np.ndarray, present: np.ndarray
    ) -> tuple[Who, DeviceData, SimulationState]:
        """Return the positions of the participants' states and examples, the examples, and the state."""
        clients = jnp.asarray(chosen)
        if not (self.stores or self.brings_data):
            return Who(clients, jnp.asarray(present), self._rows(chosen, clients), clients), self.data, state
        window = np.unique(chosen)
        places = jnp.asarray(np.searchsorted(window, chosen).astype(np.int32))
        window = np.pad(window, (0, chosen.size - len(window)), mode="edge")  # always the same size, for one compilation
        if self.store:
            state = with_rows(state, jax.tree.map(jnp.asarray, self.store.read(window)))
        data = self._on_device(window) if self.brings_data else self.data
        rows, blocks = (places if moved else clients for moved in (self.stores, self.brings_data))
        return Who(clients, jnp.asarray(present), self._rows(chosen, rows), blocks), data, state

    def take_out(self, state: SimulationState, chosen: np.ndarray) -> SimulationState:
        """Store the rows of a call's participants; the remaining state is small."""
        if not self.store:
            return state
        window, rows = np.unique(chosen), rows_of(self.setup.algorithm, state)
        self.store.append(window, jax.tree.map(np.asarray, rows))
        return with_rows(state, jax.tree.map(lambda leaf: leaf[:0], rows))._replace(stored=jnp.int32(self.store.length))

    def sync(self) -> None:
        """Make sure that the store is on disk."""
        if self.store:
            self.store.sync()

    def restore(self, length: int, path: Path | None = None) -> None:
        """Go back to the store with this number of records; `path` is its file, if it is another one."""
        if not self.store:
            return
        if path:
            self.store.close()
            self.store = self._open(path)
        self.store.cut(length)

    def _rows(self, chosen: np.ndarray, rows: Array) -> Array:
        """Return the positions of states: these rows or, for cohorts, a row per cohort."""
        s = self.schedule
        return jnp.asarray(cohort_rows(s, self.federation.clients, chosen)) if s.cohort_size else rows

    def _on_device(self, clients: Any) -> DeviceData:
        federation = self.federation
        rows = federation.features, federation.labels, federation.sizes, self.shares, federation.weights, federation.persons
        if isinstance(federation.features, Ragged) and not self._pads():
            return self._without_padding(DeviceData(*rows))
        return everywhere(DeviceData(*(None if a is None else on_device(a[clients]) for a in rows)), self.mesh)

    def _pads(self) -> bool:
        """Whether clients of unequal sizes must be padded: where several are computed at once, or only some are there."""
        coordinates = self.federation.classes * self.federation.features.shape[2] * self.schedule.participants
        at_once = takes_all_at_once(self.setup, coordinates) or self.setup.local.batch_size
        return bool(at_once or self.brings_data or self.mesh or self.schedule.cohort_size)

    def _without_padding(self, data: DeviceData) -> DeviceData:
        """All rows one after the other, and behind them room for the block of the last clients."""
        starts, sizes = data.features.starts, self.federation.sizes
        classes = size_classes(sizes)
        end = int(np.max(starts + np.array(classes)[np.searchsorted(classes, sizes)]))

        def flat(array: Any) -> Any:
            if array is None:
                return None
            rows = real_rows(array, sizes)
            return on_device(np.concatenate([rows, np.zeros((end - len(rows), *rows.shape[1:]), rows.dtype)]))

        rows = {name: flat(getattr(data, name)) for name in ("features", "labels", "weights")}
        blocks = tuple(jnp.zeros((size, 0)) for size in classes)
        shares, persons = (None if a is None else jnp.asarray(a) for a in (self.shares, self.federation.persons))
        known = data._replace(
            sizes=jnp.asarray(sizes), shares=shares, persons=persons, starts=jnp.asarray(starts), blocks=blocks
        )
        return known._replace(**rows)

    def _with_grams(self, data: DeviceData) -> DeviceData:
        """Add the products of every client's rows, if local steps are cheaper in the space of the rows."""
        setup, s, (clients, rows, features) = self.setup, self.schedule, self.federation.features.shape
        known = serves(setup.problem, setup.local, setup.privacy.gradient_noise, setup.algorithm.metric)
        often = s.rounds * s.participants / clients
        if (
            data.starts is not None
            or setup.links.has_support
            or not known
            or not pays(rows, features, self.federation.classes, setup.local.steps, often)
        ):
            return data
        return data._replace(grams=gram_matrices(data.features))

    def _first_rows(self, seed: Any) -> dict[str, Any]:
        return first_rows(self.setup, self.federation, seed, self.schedule.initial_scale)

    def _open(self, path: Path | None = None) -> ClientStore:
        first = jax.tree.map(np.asarray, self._first_rows(self.schedule.seed))
        return ClientStore(self.federation.clients, first, path)
