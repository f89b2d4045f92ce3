"""Hand independent pieces of work to a Dask cluster, or do them here.

`each` is the only way in. Outside of `on_cluster` it calls the function in this process, one item after the other. Inside, the
items go to the workers of a cluster and come back as they are finished. Callers write the same lines for both.
"""

import contextlib
import functools
import logging
import pickle
import platform
import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fedpdm.cache import remember_compilations
from fedpdm.errors import ConfigError, UserError, require_extra

__all__ = ["Timing", "each", "forget", "last_few", "last_timing", "on_cluster", "versions"]

Item = TypeVar("Item")
Result = TypeVar("Result")

ANSWER_SECONDS = 20  # for the scheduler to answer a new client
LOOK_SECONDS = 5  # between two looks whether there are workers, while no item is finished
PACKAGES = ("fedpdm", "jax", "jaxlib", "numba", "numpy")  # they decide the bits of a result
_busy = threading.Lock()  # of a worker: simulators and their caches are for one thread
_kept: list[dict[str, Any]] = []  # the objects of `last_few`
_command = [""]  # of a worker: the command that its objects belong to
_clusters: list["_Cluster"] = []  # the last one is that of the innermost `on_cluster`


class Timing(NamedTuple):
    """The time of an item, and how many items are worked on at once."""

    seconds: float
    workers: int


def each(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
    """Call a function on every item, here or on the cluster of the block.

    Parameters
    ----------
    function : callable
        From an item to its result. It must not need anything of this process but what can be pickled.
    items : sequence
        The items.

    Returns
    -------
    iterator of (item, result)
        In the order of the items here, in the order in which they are finished on a cluster.
    """
    if _clusters:
        yield from _clusters[-1].each(function, items)
    else:
        for item in items:
            yield item, function(item)


@contextlib.contextmanager
def on_cluster(address: str | None) -> Iterator[None]:
    """Let `each` use a Dask cluster in this block.

    Parameters
    ----------
    address : str or None
        The address of the cluster's scheduler, such as "tcp://10.0.0.1:8786"; None: this process does the work.

    Returns
    -------
    context manager
        Of the block.

    Raises
    ------
    UserError
        If the package distributed is not installed, or no scheduler answers.
    """
    if address is None:
        yield
        return
    require_extra("distributed", "cluster", f"--on {address}")
    cluster = _Cluster(address)
    _clusters.append(cluster)
    try:
        yield
    finally:
        _clusters.remove(cluster)
        cluster.close()


def last_timing() -> Timing | None:
    """Return how long the item took that `each` gave last.

    Returns
    -------
    Timing or None
        Its time on its worker, 0 if `each` has not given an item since the last call; None: the work is done in this process.
    """
    return _clusters[-1].timing() if _clusters else None


def forget() -> None:
    """Drop the objects that `last_few` keeps: files may have changed since they were made."""
    for kept in _kept:
        kept.clear()


def last_few(count: int) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Keep the last results of a function that makes large objects; the oldest one is dropped before the next is made.

    A worker drops all of them when another command begins, since files may have changed.

    Parameters
    ----------
    count : int
        How many results to keep.

    Returns
    -------
    callable
        A decorator. The new function takes a key, then the arguments of the old one.
    """

    def decorate(make: Callable[..., Result]) -> Callable[..., Result]:
        kept: dict[str, Result] = {}
        _kept.append(kept)

        @functools.wraps(make)
        def get(key: str, *arguments: Any) -> Result:
            if key not in kept:
                while len(kept) >= count:
                    del kept[next(iter(kept))]
                kept[key] = make(*arguments)
            return kept[key]

        return get

    return decorate


class _About(NamedTuple):
    """A command, as its workers need to know it."""

    command: str  # a name that no other command has
    versions: dict[str, str]
    folder: str  # settings may name files relative to it


class _Cluster:
    def __init__(self, address: str) -> None:
        import distributed

        self._address, self._seconds, self._name = address, 0.0, uuid.uuid4().hex
        for name in ("distributed", "distributed.client"):  # a lost scheduler is said in one line, below
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            self._client: Any = distributed.Client(address, timeout=ANSWER_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:  # a timeout is an OSError
            raise ConfigError(
                f"No Dask scheduler answers at --on {address} within {ANSWER_SECONDS} s: start one with `dask scheduler`, "
                "correct the address, or leave --on out to run here."
            ) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the scheduler may be gone
            self._client.close(timeout=LOOK_SECONDS)

    def timing(self) -> Timing:
        taken, self._seconds = self._seconds, 0.0
        return Timing(taken, len(self._client.nthreads()) if taken else 1)

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        import cloudpickle

        finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
        about = _About(self._name, versions(), str(Path.cwd()))
        waiting = {}
        for place, item in enumerate(items):
            task = cloudpickle.dumps((function, item))
            future = self._client.submit(_work, about, task, pure=False, priority=-place)
            waiting[future] = item
            future.add_done_callback(finished.put)
        try:
            while waiting:
                future = self._next(finished)
                result, self._seconds = self._result(future)
                yield waiting.pop(future), result
        finally:
            self._client.cancel(list(waiting))

    def _next(self, finished: "queue.SimpleQueue[Any]") -> Any:
        """The next finished future. While there is none, say if the cluster has no workers, once."""
        said = False
        while True:
            with contextlib.suppress(queue.Empty):
                return finished.get(timeout=LOOK_SECONDS)
            if not said and self._client.status == "running" and not self._client.nthreads():
                more = f"Waiting for one: dask worker {self._address} --nthreads 1"
                print(f"The cluster at {self._address} has no workers. {more}", file=sys.stderr, flush=True)
                said = True

    def _result(self, future: Any) -> tuple[Any, float]:
        from concurrent.futures import CancelledError

        from distributed import KilledWorker

        rest = "Finished runs are stored: the same command continues from there, with --on or without."
        try:
            return future.result()
        except UserError:
            raise
        except ImportError as error:
            raise UserError(
                f"A worker at {self._address} cannot import {error.name}: install it there as here. {rest}"
            ) from error
        except KilledWorker as error:
            raise UserError(
                f"Several workers at {self._address} died in the same run; do they have too little memory? {rest}"
            ) from error
        except (CancelledError, OSError) as error:
            raise UserError(f"The scheduler at {self._address} is gone. {rest}") from error


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the bits of a result.

    Returns
    -------
    dict of str to str
        The versions by name; "none" if a package is not installed.
    """
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def _work(about: _About, task: bytes) -> tuple[Any, float]:
    """Do one item on a worker: its result, and how long it took."""
    with _busy:
        own = versions()
        differing = [
            f"{name} {own[name]} instead of {wanted}" for name, wanted in about.versions.items() if own[name] != wanted
        ]
        if differing:
            raise ConfigError(
                f"A worker on {platform.node()} has {', '.join(differing)}, and its results could differ. Install the same."
            )
        if _command[0] != about.command:
            _command[0] = about.command
            forget()
        remember_compilations()  # before the task imports JAX
        began = time.perf_counter()
        with contextlib.chdir(about.folder if Path(about.folder).is_dir() else "."):
            function, item = pickle.loads(task)
            return function(item), time.perf_counter() - began
