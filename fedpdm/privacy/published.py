"""The paper's formulas for sensitivity, noise and epsilon: nominal only, as docs/privacy/published-mechanism.md explains."""

import math
from typing import Any

from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import check_count, check_within

__all__ = ["paper_sensitivity", "paper_sigma", "paper_round_epsilon", "paper_total_epsilon"]


def paper_sensitivity(rho: float, step_size: float, steps: int, clip: float) -> float:
    r"""Return the sensitivity of Theorem 1 as printed.

    It is $4 \eta G (1 - r^Q)/(1 - r)$ with $r = |1 - \rho\eta|$, or $4 \eta G Q$ for r = 1. It is not a guarantee: its proof
    treats the dual, which is private state, as public. Relation: add-remove, as in the paper's Definition 1.

    Parameters
    ----------
    rho, step_size, clip : float
        Weight of the proximal term, eta, and G.
    steps : int
        Q.

    Returns
    -------
    float
        The sensitivity.
    """
    check_within(0, math.inf, rho=rho, step_size=step_size, clip=clip)
    check_count(steps=steps)
    rate = abs(1 - rho * step_size)
    series = steps if math.isclose(rate, 1, abs_tol=1e-12) else (1 - rate**steps) / (1 - rate)
    return 4 * step_size * clip * series


def paper_sigma(sensitivity: float, epsilon: float, delta: float) -> float:
    r"""Return $\sigma = s \sqrt{2 \ln(1.25/\delta)}/\epsilon$, Lemma 1 as printed. It is proved for epsilon <= 1 only.

    Parameters
    ----------
    sensitivity, epsilon, delta : float
        Of one round.

    Returns
    -------
    float
        The standard deviation of the noise.
    """
    check_within(0, math.inf, sensitivity=sensitivity, epsilon=epsilon)
    check_within(0, 1, delta=delta)
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def paper_round_epsilon(
    total_epsilon: float,
    steps: int,
    batch_size: int,
    examples: int,
    participants: int,
    clients: int,
    rounds: int,
    c0: float = 1.0,
) -> float:
    r"""Solve Theorem 2 for the epsilon of one round: $\bar\epsilon / (c_0 q^2 \sqrt{pT/(1-q)})$, $q = Qb/|D|$, $p = K/N$.

    It is not a guarantee: the moments accountant gives q, not its square, and the participations are an expectation.

    Parameters
    ----------
    total_epsilon : float
        The epsilon of all rounds.
    steps, batch_size, examples : int
        Q, b and |D|.
    participants, clients, rounds : int
        K, N and T.
    c0 : float
        The constant that the theorem leaves open.

    Returns
    -------
    float
        The epsilon of one round.
    """
    check_count(steps=steps, batch_size=batch_size, examples=examples)
    check_count(participants=participants, clients=clients, rounds=rounds)
    check_within(0, math.inf, epsilon=total_epsilon, c0=c0)
    if participants > clients:
        raise ConfigError(f"Expected participants={participants} <= clients={clients}.")
    if steps * batch_size >= examples:
        raise ConfigError(
            f"Expected steps={steps} times batch_size={batch_size} < examples={examples} (Theorem 2 needs q < 1): "
            f"take at most {(examples - 1) // batch_size} steps, or smaller batches."
        )
    q = steps * batch_size / examples
    return total_epsilon / (c0 * q**2 * math.sqrt(participants / clients * rounds / (1 - q)))


def paper_total_epsilon(round_epsilon: float, *setting: Any, **named: Any) -> float:
    """Return the total epsilon of Theorem 2 as printed. It is nominal only.

    Parameters
    ----------
    round_epsilon : float
        The epsilon of one round.
    *setting, **named
        The other arguments of `paper_round_epsilon`.

    Returns
    -------
    float
        The epsilon of all rounds.
    """
    return round_epsilon / paper_round_epsilon(1.0, *setting, **named)
