"""Many runs of one client's participations, as the adversary sees them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.algorithms.local import Examples
from fedpdm.audit.sums import seen_by_adversary
from fedpdm.compression.links import shared_support
from fedpdm.privacy.mechanism import Mechanism, Release, Released
from fedpdm.rounds import Setup, client_key, client_round

__all__ = ["Pair", "Runner", "ABSENT", "CHUNK", "DRAWS", "OWN", "PRESENT"]

DRAWS = 1000  # of the client's secret batches, by the adversary itself
PRESENT, ABSENT, OWN = range(3)  # kinds of random keys: with the canary, without it, the adversary's own
MOST, CHUNK = 1000, 2**24  # most runs, and most numbers in their messages, of one call

Numbers = tuple[np.ndarray, np.ndarray]
Reduce = Callable[[Array], Array]  # messages [runs, rounds, *model] -> the adversary's statistics, [runs, ...]


class Pair(NamedTuple):
    """Two neighbouring data sets of one client, and the public point that the server sends in every round."""

    present: Examples  # with the canary
    absent: Examples  # its slot is empty (add-remove), or holds its opposite (replace-one)
    x0: Array


def _switchable(privacy: Mechanism, noisy: Array) -> Mechanism:
    """Return the mechanism itself, or its noiseless values: the adversary needs both, and one compilation serves both."""

    def either(release: Callable[[Any, Release], Released]) -> Callable[[Any, Release], Released]:
        def released(value: Any, known: Release) -> Released:
            noised = release(value, known)
            return noised._replace(value=jax.tree.map(lambda a, b: jnp.where(noisy, a, b), noised.value, value))

        return released

    in_steps = privacy.gradient_noise

    def gradient_noise(known: Release) -> tuple[Callable[[Array, tuple[int, ...]], Array], Array]:
        assert in_steps is not None
        noise, cost = in_steps(known)
        return lambda step, shape: jnp.where(noisy, noise(step, shape), 0.0), cost

    in_either = gradient_noise if in_steps else None
    return Mechanism(privacy.mechanism, either(privacy.release), either(privacy.release_message), in_either)


class Runner:
    """Many runs of one client's participations, each through `client_round` with its own keys."""

    def __init__(self, setup: Setup, x0: Array, rounds: Array, seed: int):
        self._setup, self.x0, self.rounds, self._seed = seen_by_adversary(setup, x0), x0, rounds, seed
        self.random_batches = bool(setup.local.batch_size)
        self.draws = DRAWS if self.random_batches else 1
        self._size = int(max(1, min(CHUNK // (x0.size * len(rounds)), MOST)))
        self._many = jax.jit(jax.vmap(self._one, (None, 0, None)))

    def _one(self, examples: Examples, seed: Array, noisy: Array) -> tuple[Array, Array]:
        setup = self._setup._replace(privacy=_switchable(self._setup.privacy, noisy))
        broadcast = setup.algorithm.broadcast(setup.algorithm.init_server(self.x0, 1))

        def participate(state: Any, t: Array) -> tuple[Any, tuple[Array, Array]]:
            # A support is public and the same for all data: it depends on the audit's seed, not on the run's.
            support = shared_support(setup.links, self._seed, t, self.x0)
            result = client_round(setup, examples, state, broadcast, t, client_key(seed, t, examples.client), support)
            return result.state, (setup.algorithm.model_vector(result.message), jnp.asarray(result.cost))

        _, (messages, costs) = jax.lax.scan(participate, setup.algorithm.init_client(self.x0), self.rounds)
        return messages, jnp.sum(costs)

    def reduced(self, examples: Examples, kind: int, runs: int, reduce: Reduce, noisy: bool = True) -> Numbers:
        """Return `reduce(messages [some, rounds, *model])` and the cost of every run; different kinds have different keys."""
        first = int(np.random.default_rng(self._seed).integers(2**31)) + kind * 2**30
        parts = []
        for start in range(0, runs, self._size):
            seeds = (first + start + np.arange(self._size)) % 2**32
            messages, costs = self._many(examples, jnp.asarray(seeds, jnp.uint32), jnp.bool_(noisy))
            parts.append((np.asarray(reduce(messages), np.float64), np.asarray(costs)))
        values, costs = (np.concatenate(part)[:runs] for part in zip(*parts, strict=True))
        return values, costs

    def both(self, pair: Pair, runs: int, reduce: Reduce) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the reduced messages with and without the canary, and the face value of their noise."""
        present, _ = self.reduced(pair.present, PRESENT, runs, reduce)
        absent, costs = self.reduced(pair.absent, ABSENT, runs, reduce)
        return present, absent, float(np.sqrt(costs.mean()))

    def mean(self, examples: Examples) -> Array:
        """Return the mean of the noiseless messages over the client's secret batches, as the adversary computes it."""
        means, _ = self.reduced(examples, OWN, self.draws, lambda m: m.mean(axis=0, keepdims=True), noisy=False)
        return jnp.asarray(means.mean(axis=0), jnp.float32)
