"""A scikit-learn classifier: `fit` simulates a federation, and the result is a linear model."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from fedpdm.choices import PENALTIES
from fedpdm.config import Config, load_config, validate
from fedpdm.data import clip_norms, with_bias
from fedpdm.errors import UserError
from fedpdm.estimator.rows import (
    Client,
    centre_and_spread,
    check_private,
    checked,
    curvature,
    deal,
    federation_of,
    warn_if_fitted,
)
from fedpdm.problem.prediction import softmax_shares
from fedpdm.training import train

__all__ = ["FedPDMClassifier"]

ROUNDS = 30  # where the optimum is not reached by other means


class FedPDMClassifier(ClassifierMixin, BaseEstimator):
    """Sparse linear classification by federated primal-dual learning, optionally with differential privacy.

    The clients are simulated in this process; see docs/privacy/promise.md for what that means for a guarantee.

    Parameters
    ----------
    epsilon : float or None
        Privacy budget of one client, for adding or removing one of its examples. None: no noise, no guarantee. With a
        budget, give `radius` and `classes`: values computed from the examples would reveal something about them.
    delta : float
        Delta of the guarantee.
    radius : float or None
        Public bound on the norm of a row of X; longer rows are cut to it, in `fit` and after. None: no cut; columns are
        centred and scaled by the means and deviations of all clients' examples, and the penalty is for scaled columns.
    classes : sequence or None
        All labels there can be. None: those that occur in `fit`.
    clients : int
        Number of clients that share the examples if `fit` gets no groups.
    participants : int or None
        Clients per round. None: all of them.
    rounds : int or None
        Communication rounds. None: with a budget, some of the clients or a penalty that is not convex, 30; otherwise until the
        optimum of central training is reached, by Newton's method.
    local_steps : int
        Gradient steps of a client in a round, where there is a number of rounds.
    rho : float
        Weight of the proximal term.
    penalty, gamma : str, float
        The penalty (a key of `fedpdm.choices.PENALTIES`) and its strength. Without any, there is no optimum where a line
        separates the classes.
    class_weight : dict, "balanced" or None
        The weight of an example of each class. "balanced" means n/(classes times n_k); it depends on the examples, so it is
        refused with a budget. The largest weight multiplies the noise of a private model: weights of at most 1 cost nothing.
    sparsity : float or None
        Weights that the model keeps: a share (below 1) of all weights or their number, intercepts included. None: all. It is
        post-processing, so it costs no privacy.
    averaged : bool
        Use the mean of the models over the second half of the rounds instead of the last one.
    random_state : int, RandomState or None
        The source of the initial point, of the random groups and of the noise.

    Attributes
    ----------
    classes_, n_features_in_
        As everywhere in scikit-learn.
    coef_, intercept_ : ndarray
        [classes, features] and [classes], with two classes [1, features] and [1]: the scores of rows within the radius are
        `X @ coef_.T + intercept_`.
    guarantee_ : str
        The guarantee that a federation of real clients would have. The text says that this is a simulation.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FedPDMClassifier(clients=3, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
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
        rounds: int | None = None,
        local_steps: int = 100,
        rho: float = 0.02,
        penalty: str = "l1",
        gamma: float = 1e-4,
        sparsity: float | None = None,
        class_weight: dict[Any, float] | str | None = None,
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
        self.sparsity = sparsity
        self.class_weight = class_weight
        self.averaged = averaged
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Train on the rows of X, each client on its own.

        Parameters
        ----------
        X, y : array-like
            [examples, features] numbers, and [examples] labels of any kind.
        groups : array-like, optional
            [examples] the owner of each row. Without it, `clients` clients share the rows at random.
        sample_weight : array-like, optional
            [examples] the weight of each row, at least 0; with a budget at most 1, which bounds the effect of one row.

        Returns
        -------
        FedPDMClassifier
            The estimator itself.

        Notes
        -----
        Without a budget, equal rows of one client are merged, so a weight of 2 has the same effect as two rows.
        """
        features, labels = checked(self, X, y)
        check_classification_targets(labels)
        if self.epsilon is not None and (not (self.radius or 0) > 0 or self.classes is None):
            raise ValueError(
                f"epsilon={self.epsilon} needs radius (a bound on the norm of rows, above 0) and classes (all labels there can "
                "be). Choose both without the examples: values computed from them would reveal something about them"
            )
        self.classes_, places = self._places(labels)
        random = check_random_state(self.random_state)
        given = _check_sample_weight(sample_weight, features, dtype=np.float64, ensure_non_negative=True)
        if self.epsilon is not None:
            check_private(given, self.class_weight)
        clients = deal(features, places, groups, given, self.clients, random, together=self.epsilon is None)
        class_weights = self._class_weights(clients)
        bias = float(self.radius or 1.0)
        centre, spread = (0.0, 1.0) if self.radius else centre_and_spread(clients)
        for client in clients:
            client.features = with_bias(self._within((client.features - centre) / spread))
            client.features[:, -1] = bias
        # norm 1 at most, or curvature 1 at most: both make the softmax loss 1/2-smooth; Newton's method needs neither
        scale = np.sqrt(2) * (1 + 1e-6) * bias if self.radius else curvature(clients) ** 0.5
        scale = 1.0 if self._exact(len(clients)) else scale
        for client in clients:
            client.features /= np.float32(scale)
        try:
            config = self._config(len(clients), int(random.randint(2**31 - 1)), class_weights)
            federation = federation_of(clients, list(map(str, self.classes_)), private=self.epsilon is not None)
            names = (*(f"x{column}" for column in range(features.shape[1])), "bias")
            federation = federation._replace(feature_names=names)
            with tempfile.TemporaryDirectory() as folder:
                run = train(config, Path(folder) / "run", federation=federation, report=False)
        except UserError as error:
            raise ValueError(str(error)) from error
        if self.epsilon is not None:
            warn_if_fitted(features)
        weights = run.averaged_model if self.averaged else run.model
        self.guarantee_ = run.guarantee
        weights = weights[1:] - weights[:1] if len(weights) == 2 else weights
        self.coef_ = weights[:, :-1] / scale / spread
        self.intercept_ = weights[:, -1] * bias / scale - (self.coef_ * centre).sum(axis=1)
        return self

    def _class_weights(self, clients: Sequence[Client]) -> list[float] | None:
        if self.class_weight is None:
            return None
        labels = np.concatenate([client.labels for client in clients])
        if isinstance(self.class_weight, str):
            counts = np.bincount(labels, np.concatenate([client.weights for client in clients]), len(self.classes_))
            present = np.count_nonzero(counts)
            return [float(counts.sum() / (present * count)) if count else 1.0 for count in counts]
        known = dict(enumerate(self.classes_.tolist()))
        return [float(self.class_weight.get(known[place], 1.0)) for place in range(len(known))]

    def _places(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all classes in order, and every label as its position among them."""
        classes = np.unique(labels if self.classes is None else np.asarray(self.classes))
        if len(classes) < 2:
            raise ValueError(f"Classifier can't train when only one class is present: {classes[0]!r}; it needs at least 2.")
        places = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
        if (wrong := classes[places] != labels).any():
            raise ValueError(f"The label {labels[wrong][0]!r} is none of classes={classes.tolist()}: add it, or correct y.")
        return classes, places.astype(np.int32)

    def _within(self, features: np.ndarray) -> np.ndarray:
        return clip_norms(features, self.radius) if self.radius else features

    def _config(self, clients: int, seed: int, class_weights: list[float] | None) -> Config:
        problem = {
            "loss": "softmax",
            "penalty": self.penalty,
            "gamma": self.gamma,
            "sparsity": None if self.sparsity is None else float(self.sparsity),
            "class_weights": class_weights,
            "weights": "rows" if self.epsilon is None else "clients",  # rows: as in central training
        }
        shared = {"seed": seed, "data": {"name": "own", "clients": clients, "partition": "iid"}, "problem": problem}
        if self._exact(clients):
            base = load_config("table").model_dump()
            return validate({**base, **shared, "metrics": {"evaluate_every": base["rounds"]["total"], "diagnose_every": 5}})
        rounds = ROUNDS if self.rounds is None else self.rounds
        privacy = {} if self.epsilon is None else {"mechanism": "sound", "epsilon": self.epsilon, "delta": self.delta}
        # just below 2/(rho + L); larger steps expand
        step_size = 1.9 / (self.rho + 0.5 * max(class_weights or [1.0]))
        return validate(
            {
                **shared,
                "algorithm": {"name": "fedpdm", "rho": self.rho, "server_rule": "dual-memory"},
                "local": {"steps": self.local_steps, "batch_size": 0, "step_size": step_size},
                "rounds": {"total": rounds, "participants": self.participants or clients, "all_first": False},
                "privacy": privacy,
                "metrics": {"evaluate_every": rounds, "diagnose_every": rounds},
            }
        )

    def _exact(self, clients: int) -> bool:
        """Whether to train until the optimum is reached."""
        known = self.penalty in PENALTIES and PENALTIES.row(self.penalty).convex
        return self.rounds is None and self.epsilon is None and self.participants in (None, clients) and known

    def _scores(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self)
        features = checked(self, X, reset=False)
        return self._within(features) @ self.coef_.T + self.intercept_

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Return [examples, classes] scores; with two classes [examples], positive where the second class is more likely."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return [examples, classes] probabilities."""
        scores = self._scores(X).astype(np.float64)
        return softmax_shares.apply(np.concatenate([0 * scores, scores], axis=1) if len(self.classes_) == 2 else scores)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the most likely class of every row."""
        scores = self._scores(X)
        return self.classes_[scores.argmax(axis=1) if len(self.classes_) > 2 else (scores[:, 0] > 0).astype(int)]
