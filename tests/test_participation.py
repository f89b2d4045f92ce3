"""Participation: different clients in a round, even shares, caps that hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpdm.choices.words import SAMPLINGS
from fedpdm.participation import cohort_roster, deal_cohorts, fair_share, largest_cohort, roster

sizes = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


def counts(rounds, clients):
    return np.bincount(np.concatenate([chosen[present] for chosen, present in rounds]), minlength=clients)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@given(sizes=sizes, rounds=st.integers(1, 60), seed=st.integers(0, 99), all_first=st.booleans(), cap=st.integers(0, 9))
def test_rounds_hold_different_clients_and_the_cap_holds(sampling, sizes, rounds, seed, all_first, cap):
    clients, participants = sizes
    options = {"rounds": rounds, "clients": clients, "participants": participants, "all_first": all_first}
    drawn = roster(sampling, **options, seed=seed, cap=cap)
    assert len(drawn) == rounds
    for t, (chosen, _) in enumerate(drawn):
        assert len(set(chosen)) == len(chosen) == (clients if all_first and t == 0 else participants)
    if cap:
        assert counts(drawn, clients).max() <= cap
    else:
        assert all(present.all() for _, present in drawn)
    if sampling == "cycle" and not cap:
        shares = counts(drawn, clients)
        assert shares.max() - shares.min() <= 1
        assert shares.max() == fair_share(**options)


def test_uniform_draws_every_client_and_depends_on_the_seed():
    options = {"rounds": 200, "clients": 10, "participants": 3, "all_first": False}
    first, second = (roster("uniform", **options, seed=seed) for seed in (0, 1))
    assert counts(first, 10).min() > 30  # 60 expected, with standard deviation 6.5
    assert any((a[0] != b[0]).any() for a, b in zip(first, second, strict=True))


@given(sizes=sizes, seed=st.integers(0, 9))
def test_no_cohort_is_larger_than_the_largest_that_is_promised(sizes, seed):
    """Fixed ones of all clients; and new ones of however many clients are there."""
    clients, size = sizes
    how = {"rounds": 2, "clients": clients, "participants": clients, "seed": seed, "all_first": True}
    for fixed in (True, False):
        for chosen, present in cohort_roster("cycle", size=size, fixed=fixed, **how):
            cohorts = max(1, clients // size)
            widest = present.reshape(cohorts, -1).sum(axis=1).max()
            assert len(set(chosen[present])) == present.sum()
            assert widest <= largest_cohort(clients, size, fixed)
    assert deal_cohorts(np.arange(clients), size)[1].sum(axis=1).max() == largest_cohort(clients, size, fixed=True)
    those_there = [deal_cohorts(np.arange(there), size)[1].sum(axis=1).max() for there in range(size, clients + 1)]
    assert max(those_there) == largest_cohort(clients, size, fixed=False)
