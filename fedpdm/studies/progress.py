"""How far a sweep is: cells done, and the time left.

Cells differ in cost by a factor of a hundred, and cheap ones often come first. So the time left is computed from the settings
of the cells that are planned: a cell's work is the number of values that its local steps read. The seconds for a unit of work
are measured for every family of cells (same data, same kind of step). A family of which no cell has run yet is assumed to be
as fast as all cells together. The first cell of every kind (same settings but for their numbers) may load and compile, so it is
left out there, and the mean of what such cells took longer is expected again for every kind that is still to come. On a
cluster the seconds are those of the workers, divided by their number, and what they have done of unfinished cells is taken off.
"""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console

from fedpdm.config import Config
from fedpdm.data.basis import MOST
from fedpdm.runs.cluster import Timing, last_timing
from fedpdm.runs.progress import PLAIN_SECONDS

__all__ = ["CellProgress", "Family", "Kind", "duration", "family_of", "kind_of", "work_of"]

CACHED_SECONDS = 0.02  # a faster cell was read, not run
SHAPES = {"mnist": (60000, 785), "fashion-mnist": (60000, 785), "adult": (32561, 81), "digits": (1437, 65)}
OTHER_SHAPE = (30000, 100)  # a sweep on a table has no other data, so the number does not matter
SCATTERED = 4000  # features of an image after wavelet scattering
# Values that could be read in the time of the rest of a round, and of the rest of a cell (docs/performance.md)
ROUND, CELL = 250_000, 20_000_000

Family = tuple[str | bool, ...]
Kind = tuple[str | bool | None, ...]


def duration(seconds: float) -> str:
    """Write a time in seconds or minutes.

    Parameters
    ----------
    seconds : float
        The time.

    Returns
    -------
    str
        The time with its unit.

    Examples
    --------
    >>> duration(89.0), duration(600.0)
    ('89 s', '10 min')
    """
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def work_of(config: Config) -> float:
    """Return the values that a run's local steps read, with the rest of its time in the same unit.

    Parameters
    ----------
    config : Config
        The settings of the run.

    Returns
    -------
    float
        The work; only ratios mean something.
    """
    data, local = config.data, config.local
    examples, width = SHAPES.get(data.name, OTHER_SHAPE)
    if data.basis != "none":
        width = MOST if data.basis_size == "auto" else data.basis_size
    elif data.features == "scattering":
        width = SCATTERED
    rows = local.batch_size or examples / data.clients
    participants = config.rounds.participants or data.clients
    return CELL + config.rounds.total * (ROUND + participants * local.steps * rows * width)


def family_of(config: Config, kind: str = "") -> Family:
    """Return what decides how long a unit of work takes.

    Parameters
    ----------
    config : Config
        The settings of the run.
    kind : str
        Another way to run them.

    Returns
    -------
    tuple
        Equal for runs of one family.
    """
    data = config.data
    return data.name, data.features, data.basis, config.local.batch_size == 0, config.privacy.mechanism, kind


def kind_of(config: Config, kind: str = "") -> Kind:
    """Return what decides whether two runs can share their compiled programs: all settings but for their numbers.

    Parameters
    ----------
    config : Config
        The settings of the run.
    kind : str
        Another way to run them.

    Returns
    -------
    tuple
        Equal for runs of one kind.
    """
    sections = (section for section in config.model_dump().values() if isinstance(section, dict))
    values = (value for section in sections for value in section.values())
    return (kind, *(value if isinstance(value, str) or value is None else bool(value) for value in values))


class CellProgress:
    """One line on standard error: rewritten in a terminal, repeated every few seconds in a pipe.

    Parameters
    ----------
    planned : iterable of Config
        The settings of every cell.
    enabled : bool
        Whether to print.
    others : iterable of (Config, str)
        Cells that are run in another way, with its name.
    clock : callable
        Returns the time in seconds.
    timing : callable
        Returns the time of the last cell on its worker; None: this process ran it.
    """

    def __init__(
        self,
        planned: Iterable[Config],
        enabled: bool = True,
        others: Iterable[tuple[Config, str]] = (),
        clock: Callable[[], float] = time.monotonic,
        timing: Callable[[], Timing | None] = last_timing,
    ) -> None:
        self._left: dict[Family, Counter[float]] = defaultdict(Counter)  # how many cells of each amount of work are to come
        self._kinds: Counter[Kind] = Counter()  # cells to come of the kinds of which none has run
        self._total = self._done = 0
        for config, kind in (*((config, "") for config in planned), *others):
            self._left[family_of(config, kind)][work_of(config)] += 1
            self._kinds[kind_of(config, kind)] += 1
            self._total += 1
        self._ran: dict[Family, list[tuple[float, float]]] = defaultdict(list)  # work and seconds of every cell
        self._firsts: list[tuple[Family, float, float]] = []  # family, work and seconds of the first cells of a kind
        self._enabled, self._live = enabled, Console(stderr=True).is_terminal
        self._clock, self._timing, self._said, self._last = clock, timing, 0.0, clock()
        self._workers, self._spent = 1, 0.0  # how many run cells, and their time on cells that are not finished
        self._longest = 0.0

    def __enter__(self) -> "CellProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._enabled and self._live:
            print(file=sys.stderr)

    def step(self, config: Config, name: str, kind: str = "") -> None:
        """Count one more finished cell."""
        now, family, work = self._clock(), family_of(config, kind), work_of(config)
        own = self._timing()
        passed, self._last = now - self._last, now
        took = own.seconds if own else passed
        self._done += 1
        self._take_off(family, work)
        own_kind = kind_of(config, kind)
        if took > CACHED_SECONDS:
            if self._kinds.pop(own_kind, 0):
                self._firsts.append((family, work, took))
            else:
                self._ran[family].append((work, took))
            self._workers = max(1, own.workers) if own else 1
        elif own_kind in self._kinds:
            self._kinds[own_kind] -= 1
        self._longest = max(self._longest, took)
        spent = max(0.0, self._spent + self._workers * passed - took)
        self._spent = min(spent, (self._workers - 1) * self._longest)  # workers may also have been idle
        if self._enabled and (self._live or now - self._said > PLAIN_SECONDS or self._done == self._total):
            self._said = now
            line = f"{self._done}/{self._total} cells, {duration(self.seconds_left())} left  ({name})"
            print(f"\r{line:79.79}" if self._live else line, end="" if self._live else "\n", file=sys.stderr, flush=True)

    def _take_off(self, family: Family, work: float) -> None:
        """Take off the planned cell that is most like this one: what a study will run may depend on what it finds."""
        planned = self._left[family]
        if planned:
            nearest = min(planned, key=lambda other: abs(other - work))
            planned[nearest] -= 1
            planned += Counter()  # drops what is not left

    def seconds_left(self) -> float:
        """Return the time that the cells still need."""
        ran = [cell for cells in self._ran.values() for cell in cells]
        if not ran:
            ran = [(work, seconds) for _, work, seconds in self._firsts]
        if not ran:
            return 0.0
        common = _rate(ran)
        rates = {family: _rate(cells) for family, cells in self._ran.items()}
        left = sum(
            count * work * rates.get(family, common) for family, cells in self._left.items() for work, count in cells.items()
        )
        longer = [max(0.0, seconds - work * rates.get(family, common)) for family, work, seconds in self._firsts]
        if longer:
            left += sum(longer) / len(longer) * sum(count > 0 for count in self._kinds.values())
        return max(0.0, left - self._spent) / self._workers


def _rate(cells: Sequence[tuple[float, float]]) -> float:
    """Return the seconds for a unit of work."""
    work, seconds = map(sum, zip(*cells, strict=True))
    return seconds / work
