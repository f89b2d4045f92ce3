"""One simulation on several hosts, by JAX's own distributed runtime.

Every host runs the same program on the same data, and works for its share of the participants of every round. Their results are
gathered on all hosts before the server's part, which every host computes. The first host writes the run folder.
"""

import contextlib
import hashlib
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedpdm.engines.simulation.state import Schedule
from fedpdm.errors import ConfigError, UserError

__all__ = ["device_mesh", "everywhere", "is_first", "join", "meet", "require_same"]

WAIT_SECONDS = 120  # for the other hosts, at the beginning
FORM = re.compile(r"(\d+)/(\d+)@(\S+:\d+)")


def join(hosts: str) -> None:
    """Wait for the other hosts, and run with them from now on. Call it before JAX computes anything.

    Parameters
    ----------
    hosts : str
        "NUMBER/COUNT@ADDRESS": the number of this host from 0, the number of all, and the address of host 0 with a free port;
        or "auto", which takes them from Slurm, Open MPI or another launcher that JAX knows.

    Raises
    ------
    ConfigError
        If the text has another form.
    UserError
        If the hosts do not meet in time.
    """
    found = FORM.fullmatch(hosts)
    if not found and hosts != "auto":
        raise ConfigError(f"Expected --hosts {hosts} to be NUMBER/COUNT@ADDRESS:PORT, such as 0/2@10.0.0.1:8476, or auto.")
    number, count, address = (int(found[1]), int(found[2]), found[3]) if found else (None, None, None)
    if number is not None and count is not None and not number < count:
        raise ConfigError(f"Expected the number {number} in --hosts {hosts} to be below {count}: hosts are counted from 0.")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(address, count, number, initialization_timeout=WAIT_SECONDS)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"The hosts of --hosts {hosts} did not meet within {WAIT_SECONDS} s. Start the same command on all of them, each "
            f"with its own number and the same address. JAX says: {str(error).splitlines()[0]}"
        ) from error
    with _output_to_errors():  # the first meeting prints a line
        meet("joined")


@contextlib.contextmanager
def _output_to_errors() -> Iterator[None]:
    """Let machine code that writes to standard output write to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def is_first() -> bool:
    """Return whether this host writes the run folder.

    Returns
    -------
    bool
        True on a single host.
    """
    return jax.process_index() == 0


def meet(name: str) -> None:
    """Wait until all hosts are here.

    Parameters
    ----------
    name : str
        The place.
    """
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def require_same(what: str) -> None:
    """Refuse hosts that would compute different things.

    Parameters
    ----------
    what : str
        The settings, data and versions of this host.

    Raises
    ------
    ConfigError
        On every host, if they differ.
    """
    if jax.process_count() == 1:
        return
    from jax.experimental import multihost_utils

    own = np.frombuffer(hashlib.sha256(what.encode()).digest(), np.uint8)
    found = np.asarray(multihost_utils.process_allgather(own)).reshape(jax.process_count(), -1)
    other = [str(host) for host, digest in enumerate(found) if not np.array_equal(digest, found[0])]
    if other:
        raise ConfigError(
            f"Host {', '.join(other)} has other settings, data or versions than host 0: give all hosts the same command, the "
            "same files and the same packages."
        )


def device_mesh(schedule: Schedule, clients: int) -> Mesh | None:
    """Return the devices that share the participants of every round evenly, the same number on every host.

    Parameters
    ----------
    schedule, clients
        The schedule, and the number of clients.

    Returns
    -------
    Mesh or None
        The devices; None: one.

    Raises
    ------
    ConfigError
        If several hosts cannot share them.
    """
    hosts = jax.process_count()
    if schedule.cohort_size:
        if hosts > 1:
            raise ConfigError(f"Cohorts of {schedule.cohort_size} clients do not work with --hosts: leave --hosts out.")
        return None
    everybody = clients if schedule.all_first else schedule.participants
    devices: dict[int, list[Any]] = defaultdict(list)
    for device in jax.devices():
        devices[device.process_index].append(device)
    each = range(1, min(map(len, devices.values())) + 1)
    fitting = [n for n in each if schedule.participants % (n * hosts) == 0 and everybody % (n * hosts) == 0]
    if not fitting:
        first = f", and {everybody} in the first round," if everybody != schedule.participants else ""
        given = f"rounds.participants={schedule.participants}{first}"
        raise ConfigError(f"{hosts} hosts cannot share {given} evenly: choose a multiple of {hosts}.")
    used = [device for own in devices.values() for device in own[: max(fitting)]]
    return Mesh(np.array(used), ("participants",)) if len(used) > 1 else None


def everywhere(values: Any, mesh: Mesh | None) -> Any:
    """Put the same values on every device, if there are several.

    Parameters
    ----------
    values, mesh
        The values, and the devices.

    Returns
    -------
    pytree
        The values.
    """
    if mesh is None:
        return values
    sharding = NamedSharding(mesh, PartitionSpec())
    if jax.process_count() == 1:
        return jax.device_put(values, sharding)

    def put(value: Any) -> Any:
        if isinstance(value, jax.Array) and value.sharding == sharding:
            return value
        whole = np.asarray(value)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(put, values)
