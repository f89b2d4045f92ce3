"""What the estimators share: scikit-learn's checks, the rows of every client, and their federation."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from fedpdm.data import Federation, federation_from_arrays
from fedpdm.data.weights import padded

__all__ = ["Client", "centre_and_spread", "check_private", "checked", "curvature", "deal", "federation_of", "warn_if_fitted"]


def checked(estimator: BaseEstimator, X: Any, *y: Any, **options: Any) -> Any:
    """Run scikit-learn's checks. Their declared types are those of their default values, so they are too narrow.

    Parameters
    ----------
    estimator : BaseEstimator
        The estimator.
    X : array-like
        The rows.
    *y : array-like
        The labels, if there are any.
    **options
        As in scikit-learn.

    Returns
    -------
    ndarray or tuple of ndarray
        The checked arrays.
    """
    return validate_data(estimator, X, *y, **options)


@dataclass
class Client:
    """One client's rows and their weights."""

    features: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def check_private(weights: np.ndarray, class_weight: Any) -> None:
    """Refuse weights that depend on the rows, or that exceed the bound on one row.

    Parameters
    ----------
    weights : ndarray
        [examples].
    class_weight : object
        As in the classifier; None for numbers.
    """
    if weights.max(initial=0) > 1:
        raise ValueError(
            f"sample_weight has {weights.max():g}, but epsilon allows at most 1: the guarantee bounds the effect of one row."
        )
    if isinstance(class_weight, str):
        raise ValueError(
            f"class_weight={class_weight!r} counts the classes of the examples, which epsilon does not cover: give a dict."
        )


def warn_if_fitted(features: np.ndarray) -> None:
    """Warn if the rows look as if an earlier step was fitted on them.

    Parameters
    ----------
    features : ndarray
        [examples, features].
    """
    spread = features.std(axis=0)
    columns = features[:, spread > 0]
    if not columns.size or len(columns) < 3:
        return
    centred = (np.abs(columns.mean(axis=0)) <= 1e-5 * columns.std(axis=0)).all()
    between = (columns.min(axis=0) == 0).all() and (columns.max(axis=0) == 1).all() and not np.isin(columns, (0, 1)).all()
    if centred or between:
        how = "every column has mean 0" if centred else "every column runs from 0 to 1"
        warnings.warn(
            f"X looks as if an earlier step was fitted on these rows ({how}), such as a StandardScaler in a Pipeline. Epsilon "
            "does not cover the values that this step learnt. Scale by bounds that are known without the rows.",
            UserWarning,
            stacklevel=3,
        )


def deal(
    features: np.ndarray,
    labels: np.ndarray,
    groups: ArrayLike | None,
    weights: np.ndarray,
    clients: int,
    random: np.random.RandomState,
    together: bool,
) -> list[Client]:
    """Return the rows of every client, by group or at random.

    With `together`, equal rows become one and rows of weight 0 are dropped.

    Parameters
    ----------
    features, labels, weights : ndarray
        All rows.
    groups : array-like or None
        The client of every row.
    clients : int
        The number of clients without groups.
    random : RandomState
        The source of randomness.
    together : bool
        Merge equal rows.

    Returns
    -------
    list of Client
        The clients.
    """
    names = None if groups is None else np.asarray(groups)
    if names is not None and names.shape != labels.shape:
        raise ValueError(f"groups has shape {names.shape}, but there are {len(labels)} examples: give one client per row")
    owner = None if names is None else np.unique(names, return_inverse=True)[1]
    if together:
        kept = weights > 0
        if not kept.any():
            raise ValueError("sample_weight is 0 in every row: give at least one row a weight above 0.")
        about = np.column_stack([labels, *([] if owner is None else [owner]), features])[kept]
        _, first, place = np.unique(about, axis=0, return_index=True, return_inverse=True)
        chosen = np.flatnonzero(kept)[first]
        weights = np.bincount(place.ravel(), weights[kept])
        features, labels, owner = features[chosen], labels[chosen], None if owner is None else owner[chosen]
    if owner is None:
        parts = np.array_split(random.permutation(len(labels)), min(clients, len(labels)))
    else:
        parts = [np.flatnonzero(owner == place) for place in np.unique(owner)]
    return [Client(features[part], labels[part], weights[part]) for part in parts]


def federation_of(clients: Sequence[Client], class_names: list[str], private: bool, number: bool = False) -> Federation:
    """Build the federation, with weights if they are not all 1; with a budget, sums are divided by the number of rows.

    Parameters
    ----------
    clients : sequence of Client
        The rows.
    class_names : list of str
        Names of the classes, or of the number.
    private : bool
        Whether there is a budget.
    number : bool
        Whether the label is a number.

    Returns
    -------
    Federation
        The federation.
    """
    arrays = [(client.features, client.labels) for client in clients]
    federation = federation_from_arrays(arrays, clients[0].features[:1], clients[0].labels[:1], class_names, number=number)
    if all((client.weights == 1).all() for client in clients):
        return federation
    totals = federation.sizes if private else np.array([client.weights.sum() for client in clients], np.float32)
    return federation._replace(weights=padded([client.weights for client in clients]), persons=totals)


def centre_and_spread(clients: Sequence[Client]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of every column over all clients' rows; 1 for a column that does not vary.

    Parameters
    ----------
    clients : sequence of Client
        The rows.

    Returns
    -------
    ndarray, ndarray
        [features] each.
    """
    rows = np.concatenate([client.features for client in clients]).astype(np.float64)
    weights = np.concatenate([client.weights for client in clients])
    centre = np.average(rows, axis=0, weights=weights)
    spread = np.sqrt(np.average((rows - centre) ** 2, axis=0, weights=weights))
    return centre, np.where(spread > 1e-12 * (1 + np.abs(centre)), spread, 1.0)


def curvature(clients: Sequence[Client]) -> float:
    """Return the largest eigenvalue of any client's mean of a a^T.

    Parameters
    ----------
    clients : sequence of Client
        The rows.

    Returns
    -------
    float
        The eigenvalue.
    """
    scaled = [client.features * np.sqrt(client.weights / client.weights.sum())[:, None] for client in clients]
    return max(float(np.linalg.norm(rows.astype(np.float64), 2) ** 2) for rows in scaled)
