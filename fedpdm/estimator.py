"""A scikit-learn classifier: a federation in `fit`, a linear model after it."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedpdm.config import Config, validate
from fedpdm.data import clip_norms, federation_from_arrays, with_bias
from fedpdm.errors import UserError
from fedpdm.problem.prediction import softmax_shares
from fedpdm.runs.train import train

__all__ = ["FedPDMClassifier"]


class FedPDMClassifier(ClassifierMixin, BaseEstimator):
    """Sparse linear classification by federated primal-dual learning, optionally with differential privacy.

    The clients are simulated in this process; see docs/privacy/promise.md for what that means for a guarantee.

    Parameters
    ----------
    epsilon : float or None
        Privacy budget of one client, for adding or removing one of its examples. None: no noise, no guarantee. With a
        budget, `radius` and `classes` must be given, since reading them off the examples would tell about them.
    delta : float
        Delta of the guarantee.
    radius : float or None
        Public bound on the norm of a row of X; longer rows are cut to it, in `fit` and after. None: no cut, and features are
        scaled by the curvature of the clients' examples.
    classes : sequence or None
        All labels there can be. None: those that occur in `fit`.
    clients : int
        How many clients the examples are dealt to when `fit` gets no groups.
    participants : int or None
        Clients per round. None: all of them.
    rounds, local_steps : int
        Communication rounds, and gradient steps of a client in each.
    rho : float
        Weight of the proximal term.
    penalty, gamma : str, float
        The penalty (a key of `fedpdm.choices.PENALTIES`) and its strength.
    averaged : bool
        Use the mean of the models over the second half of the rounds instead of the last one.
    random_state : int, RandomState or None
        Where the initial point, the dealing and the noise come from.

    Attributes
    ----------
    classes_, n_features_in_
        As everywhere in scikit-learn.
    coef_, intercept_ : ndarray
        [classes, features] and [classes]: the scores of rows within the radius are `X @ coef_.T + intercept_`.
    guarantee_ : str
        What is guaranteed about the examples, in a sentence.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FedPDMClassifier(clients=3, random_state=0).fit(X - [6, 3, 4, 1], y)
    >>> model.score(X - [6, 3, 4, 1], y) > 0.9
    True
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        radius: float | None = None,
        classes: Sequence[Any] | None = None,
        clients: int = 10,
        participants: int | None = None,
        rounds: int = 30,
        local_steps: int = 100,
        rho: float = 0.02,
        penalty: str = "l1",
        gamma: float = 0.0,
        averaged: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.radius = radius
        self.classes = classes
        self.clients = clients
        self.participants = participants
        self.rounds = rounds
        self.local_steps = local_steps
        self.rho = rho
        self.penalty = penalty
        self.gamma = gamma
        self.averaged = averaged
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Train on the rows of X, each client on its own.

        Parameters
        ----------
        X, y : array-like
            [examples, features] numbers, and [examples] labels of any kind.
        groups : array-like, optional
            [examples] whose row it is. Without it the rows are dealt to `clients` clients at random.
        """
        features, labels = _checked(self, X, y)
        check_classification_targets(labels)
        if self.epsilon is not None and (self.radius is None or self.classes is None):
            raise ValueError(
                f"epsilon={self.epsilon} needs radius (a bound on the norm of rows) and classes (all labels there can be), "
                "known without the examples: if read off them, they would tell about them"
            )
        self.classes_, places = self._places(labels)
        random = check_random_state(self.random_state)
        parts = _deal(groups, len(places), self.clients, random)
        bias = float(self.radius or 1.0)
        rows = with_bias(self._within(features))
        rows[:, -1] = bias
        scale = np.sqrt(2) * (1 + 1e-6) * bias if self.radius else _curvature([rows[part] for part in parts]) ** 0.5
        rows /= np.float32(scale)  # norm 1 at most, or curvature 1 at most: both make the softmax loss 1/2-smooth
        try:
            config = self._config(len(parts), int(random.randint(2**31 - 1)))
            federation = federation_from_arrays(
                [(rows[part], places[part]) for part in parts], rows[:1], places[:1], list(map(str, self.classes_))
            )
            with tempfile.TemporaryDirectory() as folder:
                run = train(config, Path(folder) / "run", federation=federation)
        except UserError as error:
            raise ValueError(str(error)) from error
        weights = run.averaged_model if self.averaged else run.model
        self.guarantee_ = run.guarantee
        self.intercept_ = weights[:, -1] * bias / scale
        self.coef_ = weights[:, :-1] / scale
        return self

    def _places(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All classes in order, and every label as a place among them."""
        classes = np.unique(labels if self.classes is None else np.asarray(self.classes))
        if len(classes) < 2:
            raise ValueError(f"Classifier can't train when only one class is present: {classes[0]!r}; it needs at least 2.")
        places = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
        if (wrong := classes[places] != labels).any():
            raise ValueError(f"The label {labels[wrong][0]!r} is none of classes={classes.tolist()}: add it, or mend y.")
        return classes, places.astype(np.int32)

    def _within(self, features: np.ndarray) -> np.ndarray:
        return clip_norms(features, self.radius) if self.radius else features

    def _config(self, clients: int, seed: int) -> Config:
        privacy = {} if self.epsilon is None else {"mechanism": "sound", "epsilon": self.epsilon, "delta": self.delta}
        return validate(
            {
                "seed": seed,
                "data": {"name": "own", "clients": clients, "partition": "iid"},
                "problem": {"loss": "softmax", "penalty": self.penalty, "gamma": self.gamma},
                "algorithm": {"name": "fedpdm", "rho": self.rho, "server_rule": "dual-memory"},
                # just below 2/(rho + L), above which steps expand
                "local": {"steps": self.local_steps, "batch_size": 0, "step_size": 1.9 / (self.rho + 0.5)},
                "rounds": {"total": self.rounds, "participants": self.participants or clients, "all_first": False},
                "privacy": privacy,
                "metrics": {"evaluate_every": self.rounds, "diagnose_every": self.rounds},
            }
        )

    def _scores(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self)
        features = _checked(self, X, reset=False)
        return self._within(features) @ self.coef_.T + self.intercept_

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """[examples, classes] scores; with two classes [examples], positive where the second class is the likelier."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """[examples, classes] probabilities."""
        return softmax_shares.apply(self._scores(X).astype(np.float64))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The likeliest class of every row."""
        scores = self._scores(X)
        return self.classes_[scores.argmax(axis=1)]


def _checked(estimator: BaseEstimator, X: Any, *y: Any, **options: Any) -> Any:
    """scikit-learn's own checks; its types are those of the default values, which are words."""
    return validate_data(estimator, X, *y, **options)


def _curvature(clients: Sequence[np.ndarray]) -> float:
    """The largest eigenvalue of any client's mean of a a^T."""
    return max(float(np.linalg.norm(rows.astype(np.float64), 2) ** 2 / len(rows)) for rows in clients)


def _deal(groups: ArrayLike | None, examples: int, clients: int, random: np.random.RandomState) -> list[np.ndarray]:
    """The rows of every client: by group, or at random."""
    if groups is None:
        return np.array_split(random.permutation(examples), min(clients, examples))
    names = np.asarray(groups)
    if names.shape != (examples,):
        raise ValueError(f"groups has shape {names.shape}, but there are {examples} examples: give one client per row")
    return [np.flatnonzero(names == name) for name in np.unique(names)]
