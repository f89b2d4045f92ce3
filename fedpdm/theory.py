"""The convergence theory of the paper: the constants of Theorem 3, and what they promise about the measure P.

The formulas follow the paper's appendix. Two things there need care. The theorem asks for 2 sqrt(5) - 4 <= L, but
its constants hold a division by 4 L - 2 and make sense for L > 1/2 only. And at L = rho/4 the descent constant
B2 = rho/2 - 4 L^2/rho - L is zero, so the bound is finite for L < rho/4 only. Any number above the true smoothness
constant is a smoothness constant too, so a slightly larger L meets the lower limit: `analyse` takes the L' >= L that
gives the smallest C0.

With noise the theorem is not proven as printed, for two reasons. Its last step replaces the squared norm of a noise vector by
sigma^2, the variance of one coordinate: with d coordinates it is d sigma^2. And the lemma that the Lagrangian falls in every
round takes the update of x0 as exact, although x0 is made from noised messages. So the bound here counts d sigma^2, and
the theorem applies without noise only.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.data.federation import Federation
from fedpdm.problem.objective import Problem, local_objectives

__all__ = [
    "Constants",
    "constants",
    "Theory",
    "smoothness_of",
    "gradient_variance",
    "analyse",
    "rounds_for",
    "answer",
    "explain",
]

# where the four parts of the bound come from, and what makes them smaller
PARTS = (
    "falls with the number of rounds",
    "falls with local.tolerance, for more local steps",
    "falls with larger batches; 0 for local.batch_size=0",
    "falls with a larger epsilon, more rows per client, or fewer coordinates",
)


class Constants(NamedTuple):
    """Theorem 3: mean of P over T rounds <= C0 (Lagrangian gap)/T + C1 nu + C2 phi^2 + C3 d sigma^2."""

    c0: float
    c1: float
    c2: float
    c3: float


def constants(smoothness: float, rho: float, clients: int) -> Constants:
    """Return C0 to C3 for a smoothness constant L with 1/2 < L < rho/4; outside of it they are infinite.

    Parameters
    ----------
    smoothness, rho : float
        L, and the weight of the proximal term.
    clients : int
        N.

    Returns
    -------
    Constants
        The constants of Theorem 3.
    """
    L = smoothness
    if not 0.5 < L < rho / 4:
        return Constants(np.inf, np.inf, np.inf, 8 * rho)
    b1, b2 = rho * clients / 2, rho / 2 - 4 * L**2 / rho - L
    b3, b4 = 8 / rho + L / (4 * L - 2), 16 / rho
    share = 1 + 4 * rho / clients
    b6, b8 = share * 16 / rho**2, L**2 / (4 * L - 2) + share * 8 / rho**2
    b7 = L**2 + rho**2 + 4 / clients * (rho + 4 * L**2 / rho) + 4 * L**2 / rho**2
    theta = max(2.0, b6, b7, b8) / min(b1, b2, b3, b4)
    return Constants(theta, 2 * theta * b3, 2 * theta * b4, 8 * rho)


def smoothness_of(problem: Problem, federation: Federation, iterations: int = 60) -> float:
    r"""Compute a smoothness constant L of every f_i from the data.

    $L = \max_i\ c\,\lambda_{\max}(A_i^\top A_i)/|D_i| + 2\beta$, where $c\,\|a\|^2$ bounds the curvature of one
    example's loss; the largest eigenvalue comes from power iteration.

    Parameters
    ----------
    problem : Problem
        The objective.
    federation : Federation
        The clients' rows.
    iterations : int
        Steps of the power iteration.

    Returns
    -------
    float
        L.
    """
    curvature = problem.loss.smoothness(1.0)

    def top_eigenvalue(features: Array, size: Array) -> Array:
        v = jnp.full(features.shape[1], features.shape[1] ** -0.5)

        def multiply(_: int, v: Array) -> Array:
            u = features.T @ (features @ v)
            return u / jnp.maximum(jnp.linalg.norm(u), 1e-30)

        v = jax.lax.fori_loop(0, iterations, multiply, v)
        return jnp.sum((features @ v) ** 2) / size

    largest = jax.lax.map(lambda one: top_eigenvalue(*one), (federation.features, federation.sizes))
    return curvature * float(jnp.max(largest)) + 2 * problem.beta


def gradient_variance(problem: Problem, federation: Federation, x: Array, batch_size: int) -> float:
    """Estimate phi^2: the largest E||mini-batch gradient - full gradient||^2 over the clients, at x.

    Parameters
    ----------
    problem, federation, x
        The objective, the clients' rows, and the model.
    batch_size : int
        Rows of a mini-batch; 0: all rows.

    Returns
    -------
    float
        The largest variance.
    """
    if batch_size == 0:
        return 0.0

    def one(client: tuple[Array, Array, Array]) -> Array:
        features, labels, size = client
        mask = jnp.arange(labels.shape[0]) < size
        single = jax.vmap(lambda a, k: problem.loss.gradient(x, a[None], k[None], jnp.ones(1)))(features, labels)
        mean = jnp.sum(jnp.where(mask[:, None, None], single, 0), axis=0) / size
        spread = jnp.sum((single - mean) ** 2, axis=(1, 2))
        return jnp.sum(jnp.where(mask, spread, 0)) / size / batch_size

    return float(jnp.max(jax.lax.map(one, (federation.features, federation.labels, federation.sizes))))


class Theory(NamedTuple):
    """The statement of Theorem 3 about one experiment."""

    smoothness: float  # L of the data
    smoothness_used: float  # the L' >= L that the constants are taken at; NaN if there is none
    rho: float
    constants: Constants
    lagrangian_gap: float  # Lagrangian at the start (with x_i = x0, lambda = 0) minus the lower bound 0
    tolerance: float  # nu
    variance: float  # phi^2, estimated at the initial point
    noise: float  # sigma^2, of one coordinate
    coordinates: int  # d
    conditions: dict[str, bool]

    @property
    def holds(self) -> bool:
        return all(self.conditions.values())

    def bound(self, rounds: int) -> float:
        """The right side of Theorem 3 after `rounds` rounds."""
        return sum(self.terms(rounds).values())

    @property
    def floor(self) -> float:
        """The part of the bound that remains after any number of rounds."""
        return sum(list(self.terms(1).values())[1:])

    def terms(self, rounds: int) -> dict[str, float]:
        """The four parts of the bound; a constant times nothing is nothing, even if the constant is infinite."""
        c = self.constants
        parts = {
            "start": (c.c0, self.lagrangian_gap / rounds),
            "local accuracy": (c.c1, self.tolerance),
            "mini-batches": (c.c2, self.variance),
            "privacy": (c.c3, self.coordinates * self.noise),
        }
        return {name: factor * value if value else 0.0 for name, (factor, value) in parts.items()}


def analyse(
    problem: Problem,
    federation: Federation,
    *,
    rho: float,
    x0: Array,
    batch_size: int,
    tolerance: float,
    noise: float = 0.0,
) -> Theory:
    """Check the conditions of Theorem 3 on this data and evaluate its constants.

    Parameters
    ----------
    problem, federation
        The objective and the clients' rows.
    rho, x0, batch_size
        Weight of the proximal term, initial model, rows of a mini-batch.
    tolerance, noise : float
        nu, and the variance of the privacy noise in one coordinate of a message.

    Returns
    -------
    Theory
        The constants, the conditions, and the bound.
    """
    data = tuple(jnp.asarray(a) for a in (federation.features, federation.labels, federation.sizes))
    L = smoothness_of(problem, federation)
    candidates = np.linspace(max(L, 0.5), rho / 4, 402)[1:-1] if max(L, 0.5) < rho / 4 else np.array([np.nan])
    best = min(candidates, key=lambda c: constants(float(c), rho, federation.clients).c0)
    gap = float(jnp.mean(local_objectives(problem, x0, data[0], data[1], data[2])) + problem.penalty.value(x0))
    return Theory(
        smoothness=L,
        smoothness_used=float(best),
        rho=rho,
        constants=constants(float(best), rho, federation.clients),
        lagrangian_gap=gap,
        tolerance=tolerance,
        variance=gradient_variance(problem, federation, x0, batch_size),
        noise=noise,
        coordinates=x0.size,
        conditions={
            "L < rho/4": rho / 4 > L,
            "rho > 2 (some L' lies between 1/2 and rho/4)": rho > 2,
            "local.tolerance > 0 (each local problem solved to nu)": tolerance > 0,
            "no noise (the proof takes x0 as exact)": noise == 0,
        },
    )


def rounds_for(theory: Theory, target: float) -> float:
    """Return the number of rounds after which the bound is below a target.

    Parameters
    ----------
    theory : Theory
        The result of `analyse`.
    target : float
        The wanted mean of P.

    Returns
    -------
    float
        The rounds; infinite if the target is not above the floor.
    """
    left = target - theory.floor
    return float(np.ceil(theory.constants.c0 * theory.lagrangian_gap / left)) if left > 0 else np.inf


def answer(theory: Theory, rounds: int) -> list[str]:
    """Say in sentences whether the theorem applies, what it promises, and what stands in the way.

    Parameters
    ----------
    theory : Theory
        The result of `analyse`.
    rounds : int
        The T of the bound.

    Returns
    -------
    list of str
        The sentences, one per line.
    """
    parts = theory.terms(rounds)
    if theory.holds:
        largest = max(parts, key=lambda name: parts[name])
        costs = dict(zip(parts, PARTS, strict=True))[largest]
        return [
            f"Theorem 3 applies: the mean of P over {rounds} rounds is at most {theory.bound(rounds):.4g}.",
            f'The largest part of this is "{largest}" ({parts[largest]:.4g}); it {costs}.',
        ]
    needed = 4 * max(theory.smoothness, 0.5)
    reasons = {
        f"algorithm.rho={theory.rho:g} is too small for this data: it must be above {needed:.4g}, which is "
        f"{'4 L' if theory.smoothness > 0.5 else 'the least for any data'}. Without it there is no bound.": theory.rho
        <= needed,
        "local.tolerance=0 stops no local problem: the theorem needs each of them solved to a nu above 0.": theory.tolerance
        <= 0,
        "The messages have noise, and the proof takes the server's update as exact. The formula would charge "
        f"{parts['privacy']:.4g} for it (C3 d sigma^2).": theory.noise > 0,
    }
    return [
        "Theorem 3 does not apply to these settings, so it promises nothing:",
        *(f"- {r}" for r, there in reasons.items() if there),
    ]


def explain(theory: Theory, rounds: int, target: float | None = None) -> list[tuple[str, float | bool, str]]:
    """Return the theory as rows of a table.

    Parameters
    ----------
    theory : Theory
        The result of `analyse`.
    rounds : int
        The T of the bound.
    target : float, optional
        A mean of P, for which the number of rounds is added.

    Returns
    -------
    list of (str, float or bool, str)
        Quantity, value and meaning.
    """
    c, parts = theory.constants, theory.terms(rounds)
    lines: list[tuple[str, float | bool, str]] = [
        ("L", theory.smoothness, "smoothness of every f_i, computed from the data"),
        ("rho/4", theory.rho / 4, "L must be below this"),
        (
            "L used",
            theory.smoothness_used,
            "L' >= L between 1/2 and rho/4 with the smallest C0",
        ),
        *((name, holds, "condition") for name, holds in theory.conditions.items()),
        ("Theorem 3 applies", theory.holds, "all conditions hold"),
        ("C0", c.c0, "times (Lagrangian gap)/T"),
        ("C1", c.c1, "times nu"),
        ("C2", c.c2, "times phi^2"),
        ("C3", c.c3, "times d sigma^2"),
        ("Lagrangian gap", theory.lagrangian_gap, "at the initial point; losses and penalties are >= 0"),
        ("nu", theory.tolerance, "local tolerance"),
        ("phi^2", theory.variance, "variance of a mini-batch gradient, estimated at the initial point"),
        ("sigma^2", theory.noise, "largest variance of the privacy noise in one coordinate of a message"),
        ("d", theory.coordinates, "coordinates of a message; the paper's bound leaves this factor out"),
        *((f"part of {name}", value, meaning) for (name, value), meaning in zip(parts.items(), PARTS, strict=True)),
        ("floor", theory.floor, "the last three parts: the rest as T grows"),
        (f"bound, T={rounds}", theory.bound(rounds), "on the mean of P over the rounds"),
    ]
    if target is not None:
        lines.append((f"rounds for P <= {target:g}", rounds_for(theory, target), "infinite if below the floor"))
    return lines
