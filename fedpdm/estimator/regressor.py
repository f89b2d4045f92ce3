"""A scikit-learn regressor: numbers, counts and quantiles."""

import tempfile
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from fedpdm.choices import LOSSES, spelled
from fedpdm.config import Config, load_config, validate
from fedpdm.data import clip_norms, with_bias
from fedpdm.data.federation import Federation
from fedpdm.data.schema import Target
from fedpdm.errors import UserError
from fedpdm.estimator.rows import check_private, checked, deal, federation_of, warn_if_fitted
from fedpdm.runs.saved import in_units
from fedpdm.setup.build import loss_factory
from fedpdm.training import train

__all__ = ["FedPDMRegressor"]

PRIVATE_ROUNDS = 30


class FedPDMRegressor(RegressorMixin, BaseEstimator):
    """Sparse linear regression by federated primal-dual learning, optionally with differential privacy.

    Without a budget it trains to the optimum of central training. The clients are simulated in this process.

    Parameters
    ----------
    loss : str
        "squared", "huber", "quantile" or "poisson".
    quantile : float
        The quantile that the loss "quantile" predicts.
    huber_threshold : float
        The residual from which the loss "huber" counts linearly, as a share of the label's range.
    epsilon : float or None
        Privacy budget of one client, for adding or removing one of its examples. None: no noise, no guarantee. With a
        budget, `radius` and `bounds` must be given, since reading them off the examples would tell about them.
    delta : float
        Delta of the guarantee.
    radius : float or None
        Public bound on the norm of a row of X; longer rows are cut to it, in `fit` and after. None: no cut.
    bounds : tuple of float or None
        The least and the largest label there can be; labels in `fit` are cut to them. None: those that occur.
    clients : int
        How many clients the examples are dealt to when `fit` gets no groups.
    rounds : int or None
        Communication rounds. None: until the optimum is reached, or 30 with a budget.
    local_steps : int
        Gradient steps of a client in a round, with a budget.
    rho : float
        Weight of the proximal term.
    penalty, gamma : str, float
        The penalty (a key of `fedpdm.choices.PENALTIES`) and its strength, for labels scaled to [0, 1].
    sparsity : float or None
        Weights that the model keeps: a share (below 1) of all weights or their number, intercepts included. None: all. It is
        post-processing, so it costs no privacy.
    averaged : bool
        Use the mean of the models over the second half of the rounds instead of the last one.
    random_state : int, RandomState or None
        Where the initial point, the dealing and the noise come from.

    Attributes
    ----------
    n_features_in_ : int
        As everywhere in scikit-learn.
    coef_, intercept_ : ndarray, float
        [features], in the label's units: `X @ coef_ + intercept_` is the prediction, or its logarithm ("poisson").
    guarantee_ : str
        What would be guaranteed about the examples, and that this is a simulation.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = FedPDMRegressor(clients=3, random_state=0).fit(X, y)
    >>> round(model.score(X, y), 3)
    0.518
    """

    def __init__(
        self,
        *,
        loss: str = "squared",
        quantile: float = 0.5,
        huber_threshold: float = 0.1,
        epsilon: float | None = None,
        delta: float = 1e-5,
        radius: float | None = None,
        bounds: tuple[float, float] | None = None,
        clients: int = 10,
        rounds: int | None = None,
        local_steps: int = 100,
        rho: float = 0.1,
        penalty: str = "l1",
        gamma: float = 0.0,
        sparsity: float | None = None,
        averaged: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ):
        self.loss = loss
        self.quantile = quantile
        self.huber_threshold = huber_threshold
        self.epsilon = epsilon
        self.delta = delta
        self.radius = radius
        self.bounds = bounds
        self.clients = clients
        self.rounds = rounds
        self.local_steps = local_steps
        self.rho = rho
        self.penalty = penalty
        self.gamma = gamma
        self.sparsity = sparsity
        self.averaged = averaged
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Train on the rows of X, each client on its own.

        Parameters
        ----------
        X, y : array-like
            [examples, features] and [examples] numbers.
        groups : array-like, optional
            [examples] whose row it is. Without it the rows are dealt to `clients` clients at random.
        sample_weight : array-like, optional
            [examples] what a row counts, at least 0; with a budget at most 1, which bounds what one row can do.
        """
        features, labels = checked(self, X, y, y_numeric=True)
        target = self._target(np.asarray(labels, np.float64))
        random = check_random_state(self.random_state)
        weights = _check_sample_weight(sample_weight, features, dtype=np.float64, ensure_non_negative=True)
        if self.epsilon is not None:
            check_private(weights, None)
        scaled = target.scale(np.asarray(labels, np.float64))
        clients = deal(features, scaled, groups, weights, self.clients, random, together=self.epsilon is None)
        bias = float(self.radius or 1.0)
        scale = np.sqrt(2) * (1 + 1e-6) * bias if self.epsilon is not None else 1.0  # with a budget norms are at most 1
        for client in clients:
            client.features = with_bias(self._within(client.features))
            client.features[:, -1] = bias
            client.features /= np.float32(scale)
        names = (*(f"x{column}" for column in range(features.shape[1])), "bias")
        try:
            config = self._config(len(clients), int(random.randint(2**31 - 1)))
            federation = federation_of(clients, ["label"], private=self.epsilon is not None, number=True)
            run = self._trained(config, federation._replace(feature_names=names))
        except UserError as error:
            raise ValueError(str(error)) from error
        if self.epsilon is not None:
            warn_if_fitted(features)
        self.guarantee_ = run.guarantee
        weights = np.asarray(run.averaged_model if self.averaged else run.model, np.float64) / scale
        weights[:, -1] *= bias
        weights = in_units(weights, names, target, self._link())
        self.coef_, self.intercept_ = weights[0, :-1], float(weights[0, -1])
        return self

    def _trained(self, config: Config, federation: Federation) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return train(config, Path(folder) / "run", federation=federation, report=False)

    def _target(self, labels: np.ndarray) -> Target:
        """The bounds of the label; counts begin at 0."""
        known = [row.name for row in LOSSES.values() if row.target == "number"]
        if self.loss not in known:
            raise ValueError(f"loss={self.loss!r} is not for numbers: choose {spelled(known)}.")
        if self.epsilon is not None and (not (self.radius or 0) > 0 or self.bounds is None):
            raise ValueError(
                f"epsilon={self.epsilon} needs radius (a bound on the norm of rows, above 0) and bounds (the least and largest "
                "label there can be), known without the examples: taken from them, they would reveal something about them"
            )
        low, high = self.bounds or (float(labels.min()), float(labels.max()))
        if self.loss == "poisson":
            if low < 0 or (labels < 0).any():
                raise ValueError(f"loss='poisson' is for counts, but the least label is {min(low, labels.min()):g}, below 0.")
            low = 0.0
        return Target(low=low, high=high if high > low else low + 1.0)

    def _within(self, features: np.ndarray) -> np.ndarray:
        return clip_norms(features, self.radius) if self.radius else features

    def _config(self, clients: int, seed: int) -> Config:
        problem = {"loss": self.loss, "penalty": self.penalty, "gamma": self.gamma}
        problem["sparsity"] = None if self.sparsity is None else float(self.sparsity)
        problem |= {"quantile": self.quantile, "huber_threshold": self.huber_threshold}
        shared = {"seed": seed, "problem": problem, "metrics": {"evaluate_every": 500, "diagnose_every": 5}}
        data: dict[str, Any] = {"name": "own", "clients": clients, "partition": "iid"}
        if self.epsilon is None:
            base = load_config("table").model_dump()
            rounds = {**base["rounds"], "total": self.rounds or 500, "tolerance": 1e-8}
            problem["weights"] = "rows"
            algorithm = {**base["algorithm"], "rho": self.rho}
            return validate({**base, **shared, "data": data | {"standardise": True}, "rounds": rounds, "algorithm": algorithm})
        smoothness = loss_factory(validate({"problem": problem}))(clip=1.0).smoothness(1.0)
        rounds = self.rounds or PRIVATE_ROUNDS
        return validate(
            {
                **shared,
                "data": data,
                "algorithm": {"name": "fedpdm", "rho": self.rho, "server_rule": "dual-memory"},
                # just below 2/(rho + L), above which steps expand
                "local": {"steps": self.local_steps, "batch_size": 0, "step_size": 1.9 / (self.rho + smoothness)},
                "rounds": {"total": rounds, "participants": clients, "all_first": False},
                "privacy": {"mechanism": "sound", "epsilon": self.epsilon, "delta": self.delta},
            }
        )

    def _link(self) -> str:
        link = LOSSES[self.loss].build().link
        return link.name if link else ""

    def predict(self, X: ArrayLike) -> np.ndarray:
        """[examples] numbers, in the label's units."""
        check_is_fitted(self)
        features = self._within(checked(self, X, reset=False))
        scores = features @ self.coef_ + self.intercept_
        return np.exp(scores) if self._link() == "log" else scores
