"""A client's part in features that depend on all clients: its release before training, and the map of its rows in every round.

The release is of means and deviations (data.standardise), or of the second moment of the features (a private basis).
"""

from collections.abc import Callable

import numpy as np

from fedpdm.compression.wire import WireError, decode, encode, make_part
from fedpdm.engines.flower.client.slots import ClientExamples
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Refused, Request
from fedpdm.privacy.first_release import Map, secure_mean, simulated_mean
from fedpdm.setup.standardise import training_rows

__all__ = ["LARGEST_MOMENT", "map_rows", "read_standard", "release_means"]

LARGEST_MOMENT = 1e6  # of noised means of numbers below 1


def release_means(job: Job, client: int, own: ClientExamples, spend: Callable[[float, float], None]) -> bytes:
    """Make the message of the task "standardise": a noised release about this client's training rows.

    Parameters
    ----------
    job, client, own
        The job, the client's number, and its examples.
    spend
        `(sensitivity, sigma)`; records the release, or raises.

    Returns
    -------
    bytes
        The encoded release.

    Formal guarantee
    ----------------
    That of `fedpdm.privacy.first_release.secure_mean` with the public slots of this client, for one row, or for all rows
    of one person; `spend` is called before noise is drawn. Rows that are held out are not in it.
    """
    plan, slots, release = job.setup[1], job.slots_of(client), job.first_release
    assert plan is not None
    assert release is not None
    z, counted = plan.standard_multiplier, own.trained()
    if job.noise == "secure":
        noised = secure_mean(release, own.features, slots, job.places_of(client), z, spend, counted)
    else:
        sensitivity = release.bound / slots
        spend(sensitivity, z * sensitivity)
        mean = release.mean(own.features, slots, counted)
        noised = simulated_mean(mean, z * sensitivity, job.settings.seed, client)
    return encode([make_part(noised.astype(np.float32), np.ones(noised.size, bool))])


def read_standard(job: Job, request: Request) -> Map | None:
    """Read the map of a request.

    From any means that the server sent, centres are in [0, 1] and scales bounded below. The map is public, and may be as
    hostile as the model: a row is mapped by itself, and cut to norm 1 after it.

    Parameters
    ----------
    job, request
        The job, and the request.

    Returns
    -------
    Standard, Directions or None
        The map; None if the job has none.

    Raises
    ------
    Refused
        With the code "standard".
    """
    release = job.first_release
    if release is None:
        if request.standard:
            raise Refused("standard", "The job does not standardise, but the request has means to do so by.")
        return None
    count = release.sent_size
    try:
        (part,) = decode(request.standard, dimensions=[count], limit=LARGEST_MOMENT)
    except WireError as error:
        raise Refused("standard", f"The means are refused ({error.reason}): {error}") from None
    if len(part.values) != count:
        raise Refused("standard", f"Expected {count} numbers about the features, got {len(part.values)}.")
    return release.read(part.values.astype(np.float64))


def map_rows(features: np.ndarray, standard: Map | None, double: bool) -> np.ndarray:
    """Map the rows for training.

    Parameters
    ----------
    features : ndarray
        The rows after the public map.
    standard : Standard, Directions or None
        The map; None: the rows stay as they are.
    double : bool
        Compute in float64.

    Returns
    -------
    ndarray
        The rows as training sees them.
    """
    if standard is None:
        return features
    return training_rows(standard, features.astype(np.float64) if double else features)
