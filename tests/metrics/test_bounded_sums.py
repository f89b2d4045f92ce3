"""Figures of numbers and times from bounded sums: those of the rows themselves, and what one row can do to them."""

import numpy as np
import pytest

from fedpdm.metrics import (
    TIME_SENSITIVITY,
    Predictions,
    evaluate_numbers,
    metrics_of_sums,
    metrics_of_times,
    number_sums,
    sums_sensitivity,
    sums_size,
    time_counts,
)
from fedpdm.metrics.times import concordance

LOSSES = {
    "squared": ("r2", "mae", "rmse"),
    "poisson": ("r2", "mae", "rmse", "deviance"),
    "quantile": ("r2", "mae", "rmse", "below"),
}
ODD = [0.0, 0.5, 1.0, -3.0, 1e9, np.nan, np.inf, 1e-9]


def rows(count=3000, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.beta(2, 5, count)
    return np.clip(0.3 * rng.random(count) + 0.6 * truth, 0.01, 1), truth


@pytest.mark.parametrize("metrics", LOSSES.values(), ids=LOSSES)
def test_figures_of_sums_are_those_of_the_rows(metrics):
    guess, truth = rows()
    vector = number_sums(guess, truth, metrics, 10)
    assert len(vector) == sums_size(metrics, 10)
    found, exact = metrics_of_sums(vector, 5.0, 25.0, metrics, 10), evaluate_numbers(5 + 20 * guess, 5 + 20 * truth, metrics)
    for name in metrics:
        if name == "deviance":
            exact = evaluate_numbers(20 * guess, 20 * truth, metrics)  # counts begin at 0
        assert found[name]["value"] == pytest.approx(exact[name]["value"], rel=1e-6)
        low, high = found[name]["interval"]
        assert low <= exact[name]["interval"][0] + 1e-3 * abs(low)  # at least as wide as that over rows
        assert high >= exact[name]["interval"][1] - 1e-3 * abs(high)
    assert sum(point["rows"] for point in found["calibration"]) == 3000


@pytest.mark.parametrize("metrics", LOSSES.values(), ids=LOSSES)
def test_no_row_moves_the_sums_further_than_the_bound_and_some_come_close(metrics):
    """Random and odd predictions and labels, alone and as rows of a person; an error that is not cut is caught."""
    rng, worst = np.random.default_rng(1), 0.0
    cases = [(p, y) for p in [*ODD, *rng.random(40)] for y in [0.0, 1.0, *rng.random(10)]]
    for p, y in cases:
        worst = max(worst, float(np.linalg.norm(number_sums(np.array([p]), np.array([y]), metrics, 7))))
    assert 0.9 * sums_sensitivity(metrics) < worst <= sums_sensitivity(metrics)
    some = rng.choice(len(cases), 5)
    person = number_sums(
        np.array([cases[k][0] for k in some]), np.array([cases[k][1] for k in some]), metrics, 7, 0.1, np.full(5, 0.2)
    )
    assert np.linalg.norm(person) <= sums_sensitivity(metrics)
    uncut = number_sums(np.array([0.9]), np.array([0.1]), metrics, 7)
    uncut[1:4] = [8.0, 64.0, 4096.0]  # largest_error = 0.1 without the cut
    assert np.linalg.norm(uncut) > sums_sensitivity(metrics)


def test_intervals_hold_the_noise():
    guess, truth = rows(2000, 3)
    vector, rng, covered = number_sums(guess, truth, LOSSES["squared"], 10), np.random.default_rng(4), 0
    exact = metrics_of_sums(vector, 0.0, 1.0, LOSSES["squared"], 10)["mae"]["value"]
    for _ in range(40):
        noised = metrics_of_sums(vector + 30 * rng.normal(size=len(vector)), 0.0, 1.0, LOSSES["squared"], 10, deviation=30.0)
        covered += noised["mae"]["interval"][0] <= exact <= noised["mae"]["interval"][1]
    assert covered >= 34
    hidden = metrics_of_sums(vector, 0.0, 1.0, LOSSES["squared"], 10, deviation=5000.0)
    assert hidden["mae"] == {"value": None, "interval": None}


def test_the_concordance_of_counts_is_that_of_times_in_bands():
    rng = np.random.default_rng(0)
    predicted, times, seen = rng.random(500), rng.random(500), rng.random(500) < 0.6
    times = np.clip(0.5 * times + 0.4 * predicted, 0.01, 1)
    vector = time_counts(predicted, 2 * times, times, seen, 5, 10)
    found = metrics_of_times(vector, 5, 10)
    bands, bins = np.ceil(times * 5), np.floor(predicted * 10)
    exact = concordance(Predictions(bins, np.where(seen, bands, -bands)))
    assert found["concordance"]["value"] == pytest.approx(exact.value, abs=1e-8)
    assert found["concordance"]["interval"] == pytest.approx([exact.low, exact.high], abs=1e-4)
    assert (found["rows"], found["events"]) == (500, seen.sum())
    assert found["expected_events"] == pytest.approx(2 * times.sum(), rel=1e-5)


def test_no_subject_moves_the_counts_of_times_further_than_the_bound():
    worst = 0.0
    for predicted in ODD:
        for expected in ODD:
            for time in (1e-6, 0.5, 1.0):
                vector = time_counts(np.array([predicted]), np.array([expected]), np.array([time]), np.array([True]), 4, 6)
                worst = max(worst, float(np.linalg.norm(vector)))
    assert worst == pytest.approx(TIME_SENSITIVITY)
