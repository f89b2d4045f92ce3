"""The exact noise of a release: its margin for rounding and its lattice, from public values alone, so both sides know them."""

import math
from typing import Any, NamedTuple

import numpy as np

from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Refused
from fedpdm.privacy.mechanism import Release
from fedpdm.privacy.noise import SecureGaussian
from fedpdm.privacy.rounding import Shape, iterate_bound, sensitivity_margin
from fedpdm.rounds import Setup
from fedpdm.setup.class_weights import heaviest_weight

__all__ = ["ExactNoise", "exact_noise", "local_shape", "noise_sigma", "round_step"]

FINEST = 2**12  # lattice steps that the noise must have


class ExactNoise(NamedTuple):
    """What rounding adds to the sensitivity, and the lattice that noise is drawn on."""

    margin: float
    gaussian: SecureGaussian


def round_step(setup: Setup, round_index: int) -> float:
    """Return the step size of `step_size_at`, in plain numbers.

    Parameters
    ----------
    setup : Setup
        The settings.
    round_index : int
        The round, from 0.

    Returns
    -------
    float
        The step size.
    """
    return setup.local.step_size / (math.sqrt(1.0 + round_index) if setup.local.schedule == "inverse-sqrt" else 1.0)


def local_shape(job: Job, places: int, step_size: float, x0: np.ndarray, linear_term: Any) -> Shape:
    """Return the public facts about a local problem, from which the error of its solution follows.

    Parameters
    ----------
    job : Job
        The job.
    places : int
        The most rows that a sum goes over.
    step_size : float
        Of the round.
    x0, linear_term : ndarray
        The model, and the linear term of the local problem.

    Returns
    -------
    Shape
        The facts.
    """
    setup = job.setup[0]
    return Shape(
        examples=places,
        features=job.width,
        classes=job.shape[0],
        radius=job.config.data.radius or 1.0,
        weight=setup.algorithm.weight,
        beta=setup.problem.beta,
        step_size=step_size,
        steps=setup.local.steps,
        start=float(np.linalg.norm(x0)),
        slope=float(np.linalg.norm(linear_term)),
        heaviest=heaviest_weight(job.config),
        curvature=setup.problem.loss.smoothness(1.0),
        steepest=setup.problem.loss.gradient_bound(1.0),
    )


def exact_noise(job: Job, client: int, round_index: int, x0: np.ndarray, linear_term: Any) -> ExactNoise:
    """Return the margin and the lattice of a client's release.

    Parameters
    ----------
    job : Job
        The job, with a mechanism.
    client, round_index : int
        The client, and the round, from 0.
    x0, linear_term : ndarray
        The model, and the linear term of the client's local problem.

    Returns
    -------
    ExactNoise
        Margin and lattice.

    Raises
    ------
    Refused
        If the model is too large for exact noise.
    """
    setup, plan = job.setup
    assert plan is not None
    step_size = round_step(setup, round_index)
    public: Any = Release(step_size, float(job.slots_of(client)), setup.local.steps, 0.0, None)  # type: ignore[arg-type]
    bound = float(plan.bound(public))
    shape = local_shape(job, job.places_of(client), step_size, x0, linear_term)
    strong = setup.algorithm.weight - setup.problem.beta / 2 if plan.mode == "certified" else None
    margin = sensitivity_margin(shape, strong)
    lattice = 2**24
    while plan.noise_multiplier * bound * lattice < FINEST and lattice < 2**40:
        lattice *= 2
    if not (iterate_bound(shape) < 2.0**51 / lattice and margin < bound):
        raise Refused("model", f"From a model of norm {shape.start:.3g} the local steps move too far for exact noise.")
    return ExactNoise(margin, SecureGaussian(lattice))


def noise_sigma(job: Job, client: int, round_index: int, x0: np.ndarray, linear_term: Any, public_slope: float) -> float:
    """Return the standard deviation of the noise in a client's solution, as `fedpdm.privacy.mechanism.secure` draws it.

    Parameters
    ----------
    job, client, round_index, x0, linear_term
        As in `exact_noise`.
    public_slope : float
        Norm of the data-free part of the first local direction.

    Returns
    -------
    float
        The standard deviation; 0 without a mechanism.
    """
    setup, plan = job.setup
    if plan is None:
        return 0.0
    examples = float(job.slots_of(client))
    release: Any = Release(round_step(setup, round_index), examples, setup.local.steps, public_slope, None)  # type: ignore[arg-type]
    bound = float(plan.bound(release))
    if job.noise != "secure":
        return plan.noise_multiplier * bound
    exact = exact_noise(job, client, round_index, x0, linear_term)
    bound = bound * (1 + (setup.local.steps + 20) * 2.0**-23) + exact.margin
    return exact.gaussian.sigma_for(plan.noise_multiplier, bound, x0.size)
