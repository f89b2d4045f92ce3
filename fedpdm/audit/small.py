"""A small case to attack, on which an audit takes seconds."""

from typing import Any

import numpy as np

from fedpdm.config import Config, validate
from fedpdm.data import Federation, federation_from_arrays
from fedpdm.data.schema import Number, Schema, Target

__all__ = ["small_config", "small_federation"]

TIME = Schema(label="time", target=Target(low=0, high=1, event="seen", bands=1), columns={"x": Number(low=0, high=1)})


def small_federation(
    examples: int = 50, features: int = 20, classes: int = 2, seed: int = 0, target: str = "classes"
) -> Federation:
    """Make one client with random unit-norm examples whose last feature is zero.

    Parameters
    ----------
    examples, features, classes, seed : int
        Sizes, and the seed of the examples.
    target : str
        "classes"; "number": the label is a number in [0, 1]; "time": it is a time until an event, in one band.

    Returns
    -------
    Federation
        A federation of one client.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, features))
    x[:, -1] = 0.0
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    if target != "classes":
        y = rng.random(examples)
        federation = federation_from_arrays([(x, y)], x, y, name="random", number=True)
        return federation._replace(schema=TIME) if target == "time" else federation
    y = rng.integers(0, classes, examples)
    y[:classes] = np.arange(classes)
    return federation_from_arrays([(x, y)], x, y, name="random")


def small_config(
    mechanism: str, attack: str, epsilon: float | None = None, mode: str = "contractive", loss: str = "softmax"
) -> Config:
    """Return settings for `small_federation` under which the attack is strongest.

    "dual" needs many rounds with small moves of the dual: Theorem 1's noise is in proportion to that move, but the memory of
    the dual is not. "steps" needs a tolerance.

    Parameters
    ----------
    mechanism, attack : str
        privacy.mechanism, and the attack.
    epsilon : float, optional
        The budget; by default 0.1 for "steps", else 0.5.
    mode, loss : str
        privacy.mode and problem.loss of the sound mechanism; the paper's has its own.

    Returns
    -------
    Config
        The settings.
    """
    values: dict[str, Any] = {
        "data": {"name": "digits", "clients": 1, "partition": "iid"},
        "problem": {"loss": loss} | ({"quantile_smoothing": 0.2} if loss == "quantile" else {}),  # so that no step expands
        "privacy": {"mechanism": mechanism, "epsilon": epsilon or (0.1 if attack == "steps" else 0.5)},
    }
    if mechanism == "paper":
        rounds, rho, steps = (40, 1.0, 1) if attack in ("dual", "canary") else (10, 10.0, 2)
        local = {"steps": steps, "batch_size": 20, "step_size": 0.001, "tolerance": 0.01 if attack == "steps" else 0.0}
        values["problem"] = {"loss": "logistic"}
    else:
        rounds, rho = (20 if attack == "dual" else 8), 0.1
        local = {"steps": 5, "batch_size": 10 if mode == "one-pass" else 0, "step_size": 0.1}
        values["privacy"]["mode"] = mode
        if mode == "certified":
            rho, local = 1.0, {"steps": 50, "batch_size": 0, "step_size": 0.5, "tolerance": 1e-6}
    values |= {"algorithm": {"rho": rho}, "local": local, "rounds": {"total": rounds, "participants": 1}}
    return validate(values)
