"""The time left of a sweep is right within a factor of 1.5 after its first minute, whatever its cells cost."""

import heapq
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from fedpdm.config import Config, digest, load_config
from fedpdm.runs.cluster import Timing
from fedpdm.studies.paper.figures import Scale, cells, panels
from fedpdm.studies.progress import CellProgress, duration, family_of, kind_of, work_of

KEPT = Path(__file__).parents[2] / "docs/results/paper/cells.jsonl"


def follow(configs: Sequence[Config], seconds: Sequence[float]) -> Iterator[tuple[float, float, float]]:
    """After every cell: the time, the true time left, and the estimate; cells of no time were kept."""
    now, total = 0.0, sum(seconds)
    progress = CellProgress(configs, enabled=False, clock=lambda: now)
    for config, took in zip(configs, seconds, strict=True):
        now += took
        progress.step(config, "")
        yield now, total - now, progress.seconds_left()


def follow_workers(configs: Sequence[Config], seconds: Sequence[float], workers: int) -> Iterator[tuple[float, float, float]]:
    """As `follow`, on workers that take the next cell when they are free."""
    free, finished = [0.0] * workers, []
    for config, took in zip(configs, seconds, strict=True):
        end = heapq.heappop(free) + took
        heapq.heappush(free, end)
        finished.append((end, took, config))
    now, own, total = 0.0, 0.0, max(free)
    progress = CellProgress(configs, enabled=False, clock=lambda: now, timing=lambda: Timing(own, workers))
    for now, own, config in sorted(finished, key=lambda cell: cell[0]):  # noqa: B007  (the callables read them)
        progress.step(config, "")
        yield now, total - now, progress.seconds_left()


def wrong_by(seen: Iterator[tuple[float, float, float]], last: float = 60) -> float:
    """The largest factor after the first minute and before the last one."""
    return max(max(left / guess, guess / left) for now, left, guess in seen if now > 60 and left > last)


def of_the_paper() -> tuple[list[Config], list[float]]:
    """The 700 cells of the study that docs/results holds, in the order in which they run, with their times."""
    kept = {result["config"]: result["seconds"] for result in map(json.loads, KEPT.read_text().splitlines())}
    settings = {key: config for panel in panels() for key, config in cells(panel, Scale()).items()}
    configs = [config.model_copy(update={"seed": seed}) for config in settings.values() for seed in range(5)]
    return configs, [kept[digest(config)] for config in configs]


def test_it_holds_for_the_papers_study_and_not_for_the_mean_of_the_cells_so_far() -> None:
    configs, seconds = of_the_paper()
    assert wrong_by(follow(configs, seconds)) < 1.5
    assert wrong_by(follow_workers(configs, seconds, 2)) < 1.5
    mean = (
        (now, left, now / done * (len(configs) - done)) for done, (now, left, _) in enumerate(follow(configs, seconds), start=1)
    )
    assert wrong_by(mean) > 2, "the control: cheap cells come first"


@pytest.mark.parametrize("seed", range(5))
def test_it_holds_for_cells_of_unequal_cost(seed: int) -> None:
    """Families in any order, each up to 1.2 times faster or slower than its work says; compilation, noise, and kept cells."""
    rng = np.random.default_rng(seed)
    configs, seconds = [], []
    for name in rng.permutation(["adult", "mnist", "digits"]):
        for batch in rng.permutation([0, 10]):
            base = load_config("plain", [f"data.name={name}", f"local.batch_size={batch}", "local.step_size=0.1"])
            speed = 3e-9 * 1.2 ** rng.uniform(-1, 1)
            for cell in range(60):
                rounds = base.rounds.model_copy(update={"total": int(rng.integers(20, 400))})
                configs.append(base.model_copy(update={"rounds": rounds, "seed": cell}))
                took = speed * work_of(configs[-1]) * 1.2 ** rng.uniform(-1, 1)
                seconds.append(0.0 if len(configs) < 30 else took + 3.0 * (cell == 0))
    assert wrong_by(follow(configs, seconds)) < 1.5
    # Near the end the longest cells decide, and most workers may wait for them
    assert wrong_by(follow_workers(configs, seconds, 4), last=2 * max(seconds)) < 1.5


@pytest.mark.parametrize("seed", range(3))
def test_it_holds_where_compiling_takes_most_of_the_time(seed: int) -> None:
    """As for readings of the paper: half of the kinds compile for ten seconds, and kinds of few cells come first."""
    rng = np.random.default_rng(seed)
    kinds = itertools.product(("participants", "cached", "dual-memory"), ("none", "unit", "centred"), ("prox", "subgradient"))
    configs, seconds = [], []
    for i, (server, scaling, place) in enumerate(rng.permutation(list(kinds))):
        own = [f"algorithm.server_rule={server}", f"data.scaling={scaling}", f"problem.penalty_by={place}"]
        base = load_config("paper-mnist", own)
        for cell in range(3 if i < 9 else 40):
            rounds = base.rounds.model_copy(update={"total": int(rng.choice([50, 100, 200]))})
            configs.append(base.model_copy(update={"rounds": rounds, "seed": cell}))
            took = 2e-9 * work_of(configs[-1]) * 1.2 ** rng.uniform(-1, 1)
            seconds.append(took + 10.0 * (cell == 0 and i % 2 == 0))
    assert wrong_by(follow(configs, seconds)) < 1.5
    assert kind_of(configs[0]) == kind_of(configs[1]) != kind_of(configs[-1])


def test_cells_other_than_planned_never_end_the_time_before_the_work() -> None:
    """A study that tunes plans its last cells before it knows them; here they turn out three times as long."""
    planned = [load_config("paper-adult", ["rounds.total=100", f"seed={seed}"]) for seed in range(20)]
    longer = [load_config("paper-adult", ["rounds.total=300", f"seed={seed}"]) for seed in range(10)]
    now = 0.0
    progress = CellProgress(planned, enabled=False, clock=lambda: now)
    for left, config in zip(range(19, -1, -1), [*planned[:10], *longer], strict=True):
        now += 30.0 if config.rounds.total == 300 else 10.0
        progress.step(config, "")
        assert (progress.seconds_left() > 5 * left) == (left > 0)
    assert progress.seconds_left() == 0


def test_work_follows_rounds_and_rows_and_a_family_is_data_and_steps() -> None:
    plain, whole = load_config("plain", []), load_config("plain", ["local.batch_size=0"])
    twice = load_config("plain", [f"rounds.total={2 * plain.rounds.total}"])
    assert 1.9 * work_of(plain) < work_of(twice) < 2 * work_of(plain)
    assert work_of(whole) > work_of(plain)
    assert family_of(twice) == family_of(plain) != family_of(whole)
    assert family_of(plain, "gap") != family_of(plain)
    assert duration(90) == "2 min"
