r"""How far one example can move a client's local solution: the add/remove sensitivity of each way of solving.

Setting of every bound. A client has n slots, n is public, and some slots may be empty. Two data sets are neighbours if they
differ in whether ONE slot is filled (add/remove). Sums over examples are divided by public numbers (n, or the batch size b),
never by the private count. Every example's features are cut to norm R. The starting point, the linear term (the released
dual), the step size and the number of steps are public.

C bounds the norm of one example's gradient (`Loss.gradient_bound`). The clipped losses of `fedpdm.problem.losses` stay
convex and L-smooth, so one full gradient step $x \mapsto x - \eta\,(\nabla f(x) + v + w (x - x_0))$ is Lipschitz with
$c = \max(|1 - \eta (w - \beta/2)|,\ |1 - \eta (w + L + 2\beta)|)$: see docs/privacy/proofs.md.

Changing one example into another (replace-one) at most doubles each bound.

Every function takes plain numbers or JAX arrays.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedpdm.errors import ConfigError

__all__ = [
    "Number",
    "Curvature",
    "contraction",
    "linearised",
    "contractive",
    "one_pass",
    "certified",
    "reached",
    "every_step",
    "batch_clipped",
    "require_contraction",
]

Number = float | Array


class Curvature(NamedTuple):
    """The curvature of the local problem f_i(x) + <v, x> + (w/2)||x - x0||^2."""

    weight: float  # w: rho for FedPDM, 0 for FedAvg
    smoothness: float  # L of the data part
    beta: float = 0.0  # of the data-free term, whose curvature lies in [-beta/2, 2 beta]

    @property
    def lowest(self) -> float:
        return self.weight - self.beta / 2

    @property
    def highest(self) -> float:
        return self.weight + self.smoothness + 2 * self.beta


def contraction(curvature: Curvature, step_size: Number) -> Number:
    """Return the Lipschitz constant c of one full gradient step.

    Parameters
    ----------
    curvature : Curvature
        Of the local problem.
    step_size : number
        eta.

    Returns
    -------
    number
        c.
    """
    slow, fast = 1 - step_size * curvature.lowest, 1 - step_size * curvature.highest
    if isinstance(step_size, float | int):
        return max(abs(slow), abs(fast))
    return jnp.maximum(jnp.abs(slow), jnp.abs(fast))


def require_contraction(curvature: Curvature, step_size: float) -> None:
    """Refuse settings with c > 1, for which the bounds of this module do not hold.

    The steps may shrink later: c <= 1 for one step size implies it for all smaller ones.

    Parameters
    ----------
    curvature, step_size
        As in `contraction`.

    Raises
    ------
    ConfigError
        If the steps expand; it names the largest step size that is allowed.
    """
    if curvature.lowest < 0:
        raise ConfigError(
            f"The weight of the proximal term is {curvature.weight:g}, but the non-convex term needs at least "
            f"problem.beta/2 = {curvature.beta / 2:g} for a private local solve: raise algorithm.rho or lower problem.beta "
            "(the weight is mu in fedprox, alpha in feddyn, rho in feddr and afedpd; fedavg and scaffold have none)."
        )
    if contraction(curvature, float(step_size)) > 1 + 1e-12:
        raise ConfigError(
            f"local.step_size={step_size:g} makes local steps expand (c = {contraction(curvature, float(step_size)):.3g} "
            f"> 1), so nothing bounds the influence of one example: use at most {_rounded_down(2 / curvature.highest)}."
        )


def _rounded_down(value: float) -> str:
    """Return four digits, never above the value: a limit in a message must hold."""
    text = f"{value:.4g}"
    return text if float(text) <= value else f"{value * (1 - 5e-4):.4g}"


def _geometric_sum(ratio: Number, terms: int) -> Number:
    """Return 1 + ratio + ... + ratio^(terms - 1), term by term: the closed form loses digits in float32 for a ratio near 1."""
    if isinstance(ratio, float):
        return sum(ratio**r for r in range(terms))
    return jnp.sum(jnp.asarray(ratio)[..., None] ** jnp.arange(terms), axis=-1)


def linearised(clip: float, weight: float, step_size: Number, steps: int, examples: Number) -> Number:
    """Bound the solution on one full gradient at x0: (1 - kappa) C/(w n), kappa = (1 - w eta)^Q.

    Formal guarantee: the solution is x0 + M (g + v) with the public number M = -eta sum_r (1 - w eta)^r; one example changes g,
    a sum over examples divided by n, by at most C/n. It needs no assumption about curvature.

    Parameters
    ----------
    clip, weight, step_size, steps, examples
        C, w, eta, Q and n.

    Returns
    -------
    number
        The add/remove sensitivity.
    """
    return abs(step_size * _geometric_sum(1 - weight * step_size, steps)) * clip / examples


def contractive(clip: float, curvature: Curvature, step_size: Number, steps: int, examples: Number) -> Number:
    """Bound the solution after Q full-batch steps: eta (C/n)(1 - c^Q)/(1 - c).

    Formal guarantee: for c <= 1 (`require_contraction`). With d_r the distance of the two runs after r steps, d_{r+1} <= c d_r
    + eta C/n.

    Parameters
    ----------
    clip, curvature, step_size, steps, examples
        C, the curvature of the local problem, eta, Q and n.

    Returns
    -------
    number
        The add/remove sensitivity.
    """
    return step_size * clip / examples * _geometric_sum(contraction(curvature, step_size), steps)


def one_pass(clip: float, step_size: Number, batch_size: int) -> Number:
    """Bound the solution after one pass over disjoint batches: eta C/b.

    Formal guarantee: for c <= 1 with the smoothness of a batch. The batches are drawn without a look at the data, so the
    example is in one batch at most. That step moves the runs apart by eta C/b, and no other step increases the distance.

    Parameters
    ----------
    clip, step_size, batch_size
        C, eta and b.

    Returns
    -------
    number
        The add/remove sensitivity.
    """
    return step_size * clip / batch_size


def certified(clip: float, curvature: Curvature, tolerance: Number, examples: Number) -> Number:
    """Bound the result of any solver that ends with a full gradient of norm <= tau: (C/n + 2 tau)/(w - beta/2).

    Formal guarantee: for w > beta/2 (strong convexity of the local problem), and only if the solver reaches the tolerance for
    all data: see `reached`.

    Parameters
    ----------
    clip, curvature, tolerance, examples
        C, the curvature of the local problem, tau and n.

    Returns
    -------
    number
        The add/remove sensitivity.
    """
    return (clip / examples + 2 * tolerance) / curvature.lowest


def reached(clip: float, curvature: Curvature, tolerance: float, step_size: Number, steps: int, public_slope: Number) -> Number:
    """Return the gradient norm that at most `steps` steps reach for all data: max(tau, c^(steps - 1) (C + public slope)).

    A gradient step multiplies the gradient's norm by c at most, and the first norm is at most C plus the data-free part. So a
    cap on the steps never breaks the guarantee: it raises the tolerance, and with it the noise, by a public amount.

    Parameters
    ----------
    clip, curvature, tolerance, step_size, steps
        C, the curvature of the local problem, tau, eta and Q.
    public_slope
        Norm of the data-free part of the first direction.

    Returns
    -------
    number
        The tolerance to use in `certified`.
    """
    start = clip + public_slope
    return jnp.maximum(tolerance, contraction(curvature, step_size) ** (steps - 1) * start)


def every_step(clip: float, examples: Number) -> Number:
    """Bound the full gradient that is noised in every local step: C/n, once per step.

    Formal guarantee: it needs no assumption about curvature; a participation counts as Q releases.

    Parameters
    ----------
    clip, examples
        C and n.

    Returns
    -------
    number
        The add/remove sensitivity of one step's gradient.
    """
    return clip / examples


def batch_clipped(clip: float, curvature: Curvature, step_size: Number, steps: int) -> Number:
    """Bound steps whose batch gradient (its data part) is cut to norm G: 2 eta G (1 - c^Q)/(1 - c).

    That is at most 2 G/w for beta = 0 and w eta <= 1.

    Formal guarantee: it needs no assumption about the loss or the batches, as two vectors of norm <= G differ by 2 G at most; c
    is the contraction of the data-free part alone, so `curvature.smoothness` plays no role.

    Parameters
    ----------
    clip, curvature, step_size, steps
        G, the curvature of the local problem, eta and Q.

    Returns
    -------
    number
        The add/remove sensitivity.
    """
    ratio = contraction(curvature._replace(smoothness=0.0), step_size)
    return 2 * clip * step_size * _geometric_sum(ratio, steps)
