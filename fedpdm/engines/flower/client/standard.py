"""A client's part in standardised features: its noised means, once before training, and the map of its rows in every round."""

from collections.abc import Callable

import numpy as np

from fedpdm.compression.wire import WireError, decode, encode, make_part
from fedpdm.data.standard import Standard
from fedpdm.engines.flower.client.slots import ClientExamples
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Refused, Request
from fedpdm.privacy.standard_release import (
    Moments,
    client_moments,
    moment_count,
    moments_sensitivity,
    secure_moments,
    simulated_moments,
    standard_from,
    standardised_rows,
)

__all__ = ["LARGEST_MOMENT", "map_rows", "read_standard", "release_means"]

LARGEST_MOMENT = 1e6  # of noised means of numbers below 1


def release_means(job: Job, client: int, own: ClientExamples, spend: Callable[[float, float], None]) -> bytes:
    """Make the message of the task "standardise": noised means of this client's training rows.

    Parameters
    ----------
    job, client, own
        The job, the client's number, and its examples.
    spend
        `(sensitivity, sigma)`; records the release, or raises.

    Returns
    -------
    bytes
        The encoded means.

    Formal guarantee
    ----------------
    That of `fedpdm.privacy.standard_release.secure_moments` with the public slots of this client, for one row, or for all rows
    of one person; `spend` is called before noise is drawn. Rows that are held out are not in it.
    """
    plan, slots, names = job.setup[1], job.slots_of(client), job.features
    assert plan is not None
    z, counted = plan.standard_multiplier, own.trained()
    if job.noise == "secure":
        noised = secure_moments(own.features, names, slots, job.places_of(client), z, spend, counted)
    else:
        sensitivity = moments_sensitivity(names) / slots
        spend(sensitivity, z * sensitivity)
        noised = simulated_moments(
            client_moments(own.features, names, slots, counted), z * sensitivity, job.settings.seed, client
        )
    return encode([make_part(noised.astype(np.float32), np.ones(noised.size, bool))])


def read_standard(job: Job, request: Request) -> Standard | None:
    """Read the map of a request. From any means that the server sent, centres are in [0, 1] and scales bounded below.

    The map is public, and may be as hostile as the model: a row is mapped by itself, and cut to norm 1 after it.

    Parameters
    ----------
    job, request
        The job, and the request.

    Returns
    -------
    Standard or None
        The map; None if the job does not standardise.

    Raises
    ------
    Refused
        With the code "standard".
    """
    if not job.settings.data.standardise:
        if request.standard:
            raise Refused("standard", "The job does not standardise, but the request has means to do so by.")
        return None
    count = moment_count(job.features)
    try:
        (part,) = decode(request.standard, dimensions=[count + 1], limit=LARGEST_MOMENT)
    except WireError as error:
        raise Refused("standard", f"The means are refused ({error.reason}): {error}") from None
    if len(part.values) != count + 1:
        raise Refused("standard", f"Expected {count} means and their noise, got {len(part.values)} numbers.")
    values = part.values.astype(np.float64)
    return standard_from(Moments(values[:-1], min(abs(float(values[-1])), 1.0)), job.features)


def map_rows(features: np.ndarray, standard: Standard | None, double: bool) -> np.ndarray:
    """Map the rows for training.

    Parameters
    ----------
    features : ndarray
        The rows after the public map.
    standard : Standard or None
        Centres and scales; None: the rows stay as they are.
    double : bool
        Compute in float64.

    Returns
    -------
    ndarray
        The rows as training sees them.
    """
    if standard is None:
        return features
    return standardised_rows(standard, features.astype(np.float64) if double else features)
