"""The computation of one client's message: `client_round`, compiled, with the noise of a real client in between."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.algorithms.base import Broadcast
from fedpdm.algorithms.local import Examples
from fedpdm.compression.links import shared_support
from fedpdm.compression.messages import LARGEST
from fedpdm.compression.wire import WireError, decode, spread
from fedpdm.config import Config
from fedpdm.engines.flower.client.node_data import ClientExamples, cut_norms
from fedpdm.engines.flower.protocol import Refused, Request
from fedpdm.privacy.mechanism import Mechanism, Release, secure
from fedpdm.privacy.noise import SecureGaussian
from fedpdm.privacy.plan import Plan
from fedpdm.privacy.rounding import Shape, iterate_bound, sensitivity_margin
from fedpdm.rounds import ClientResult, Setup, client_key, client_round

__all__ = ["Work"]

SpendFn = Callable[[float, float], None]  # (sensitivity, sigma); records a release, or raises


class Work:
    """The computation of one message."""

    def __init__(self, config: Config, request: Request, own: ClientExamples, setup: Setup, plan: Plan | None) -> None:
        self.config, self.request, self.own, self.setup, self.plan = config, request, own, setup, plan
        algorithm, shape = setup.algorithm, (own.classes, own.features.shape[1])
        zeros = np.zeros(shape, np.float32)
        like = jax.eval_shape(lambda x0: (algorithm.broadcast(algorithm.init_server(x0, 1)), algorithm.init_client(x0)), zeros)
        self.broadcast = _decode(request.vectors, like[0])
        self.state_tree = jax.tree.structure(like[1])

    def first_state(self) -> list[np.ndarray]:
        """What a client that has not taken part yet keeps."""
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.setup.algorithm.init_client(self.broadcast.x0))]

    def make(self, leaves: list[np.ndarray], spend: SpendFn) -> ClientResult:
        """Run `client_round`; `spend(sensitivity, sigma)` is called before any noise is drawn."""
        request, links = self.request, self.setup.links
        state = jax.tree.unflatten(self.state_tree, leaves)
        setup, radius = self.setup, self.config.data.radius or 1.0
        double = self.plan is not None and request.noise == "secure"
        features = cut_norms(self.own.features, radius) if double else self.own.features
        if double:
            setup = setup._replace(privacy=self._secure(state, radius, spend))
        elif self.plan:
            step_size = _step_size(setup, request.round)
            sensitivity = self.plan.sensitivity(step_size, len(features))
            spend(sensitivity, self.plan.cost_multiplier() * sensitivity)
        rows: Any = (features[None], self.own.labels[None], np.array([len(features)], np.int32), np.int32(0))
        seed: Any = np.uint32(self.config.seed)
        t: Any = np.int32(request.round)  # an array: else every round would be compiled anew
        key = jax.jit(client_key)(seed, t, np.int32(request.client))
        support = jax.jit(partial(shared_support, links))(seed, t, self.broadcast.x0) if links.has_support else None
        return client_round(setup, Examples(*rows), state, self.broadcast, t, key, support, Compiled(double))

    def _secure(self, state: Any, radius: float, spend: SpendFn) -> Mechanism:
        """The secure mechanism for this round: everything that it rests on is public."""
        plan, setup, t = self.plan, self.setup, self.request.round
        assert plan is not None
        step_size = _step_size(setup, t)
        public: Any = Release(step_size, float(len(self.own.labels)), setup.local.steps, 0.0, None)  # type: ignore[arg-type]
        bound = float(plan.bound(public))
        shape = Shape(
            examples=len(self.own.labels),
            features=self.own.features.shape[1],
            classes=self.own.classes,
            radius=radius,
            weight=setup.algorithm.weight,
            beta=setup.problem.beta,
            step_size=step_size,
            steps=setup.local.steps,
            start=float(np.linalg.norm(self.broadcast.x0)),
            slope=float(np.linalg.norm(setup.algorithm.linear_term(state, self.broadcast))),
        )
        strong = setup.algorithm.weight - setup.problem.beta / 2 if plan.mode == "certified" else None
        margin = sensitivity_margin(shape, strong)
        lattice = 2**24
        while plan.noise_multiplier * bound * lattice < 2**12 and lattice < 2**40:
            lattice *= 2
        if not (iterate_bound(shape) < 2.0**51 / lattice and margin < bound):
            raise Refused("model", f"From a model of norm {shape.start:.3g} the local steps go too far for exact noise.")
        return secure(plan.bound, plan.noise_multiplier, margin, spend, SecureGaussian(lattice))


class Compiled:
    """How a real client runs the two parts of `client_round`: compiled, and the part that sees data in float64."""

    def __init__(self, double: bool) -> None:
        self.double = double

    def __call__(self, name: str, function: Any) -> Any:
        double = self.double and name == "solve"

        def run(setup: Setup, *inputs: Any) -> Any:
            with jax.enable_x64(double):
                return jax.jit(partial(function, setup))(*jax.tree.map(partial(_in_precision, double), inputs))

        return run


def _in_precision(double: bool, leaf: Any) -> Any:
    """Floating-point arrays in the precision of this part; everything else as it is."""
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return np.asarray(leaf, np.float64 if double else np.float32)
    return leaf


def _step_size(setup: Setup, round_index: int) -> float:
    """That of `step_size_at`, in plain numbers."""
    return setup.local.step_size / (math.sqrt(1.0 + round_index) if setup.local.schedule == "inverse-sqrt" else 1.0)


def _decode(vectors: bytes, like: Broadcast) -> Broadcast:
    """The broadcast from its bytes; a model that is not finite or is huge is refused."""
    leaves, tree = jax.tree.flatten(like)
    try:
        parts = decode(vectors, dimensions=[leaf.size for leaf in leaves], limit=LARGEST)
    except WireError as error:
        raise Refused("model", f"The model is refused ({error.reason}): {error}") from None
    values: list[Array | np.ndarray] = [spread(part)[0].reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(tree, values)
