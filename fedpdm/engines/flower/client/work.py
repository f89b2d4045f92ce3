"""The computation of one client's message: `client_round`, compiled, with the noise of a real client in between."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.algorithms.base import Broadcast
from fedpdm.algorithms.local import Examples
from fedpdm.compression.links import shared_support
from fedpdm.compression.messages import LARGEST
from fedpdm.compression.wire import WireError, decode, encode, make_part, spread
from fedpdm.engines.flower.client.node_data import ClientExamples, cut_norms
from fedpdm.engines.flower.client.standard import map_rows, read_standard
from fedpdm.engines.flower.client.tally import tally
from fedpdm.engines.flower.exact import exact_noise, round_step
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.job_evaluation import tally_sensitivity
from fedpdm.engines.flower.protocol import Refused, Request
from fedpdm.privacy.curvature_release import secure_curvature
from fedpdm.privacy.evaluation import release_counts
from fedpdm.privacy.mechanism import Mechanism, no_privacy, secure
from fedpdm.rounds import ClientResult, Setup, client_key, client_round

__all__ = ["Work"]

SpendFn = Callable[[float, float], None]  # (sensitivity, sigma); records a release, or raises


class Work:
    """The computation of one message. Shapes and numbers of rows are the job's, so they do not depend on the client."""

    def __init__(self, job: Job, request: Request) -> None:
        self.job, self.config, self.request = job, job.config, request
        self.setup, self.plan = job.setup
        self.slots, self.places = job.slots_of(request.client), job.places_of(request.client)
        self.standard = read_standard(job, request)
        like = _shapes(job)
        self.broadcast = _decode(request.vectors, like[0])
        self.state_tree = jax.tree.structure(like[1])

    @property
    def note(self) -> str:
        """The ledger's note for the release."""
        if self.request.task == "evaluate":
            return "evaluation, secure noise"
        if self.request.task == "intervals":
            return "gradients and curvature, secure noise"
        return f"{self.plan.mode if self.plan else ''}, {self.job.noise} noise"

    @property
    def double(self) -> bool:
        """Whether the part that sees data is computed in float64."""
        return self.plan is not None and self.job.noise == "secure"

    def first_state(self) -> list[np.ndarray]:
        """Return the state of a client that has not taken part yet."""
        if self.request.task != "train":
            return []
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.setup.algorithm.init_client(self.broadcast.x0))]

    def make(self, own: ClientExamples, leaves: list[np.ndarray], spend: SpendFn) -> ClientResult:
        """Run `client_round`; `spend(sensitivity, sigma)` is called before any noise is drawn."""
        setup = self.setup
        if self.double:
            state = jax.tree.unflatten(self.state_tree, leaves)
            setup = setup._replace(privacy=self._secure(state, spend))
        elif self.plan:
            sensitivity = self.plan.sensitivity(round_step(setup, self.request.round), self.slots)
            spend(sensitivity, self.plan.noise_multiplier * sensitivity)
        return self._run(setup, own, leaves)

    def quiet(self, own: ClientExamples, leaves: list[np.ndarray]) -> ClientResult:
        """The same without noise, for an audit by the owner of the rows. It must not leave the node."""
        return self._run(self.setup._replace(privacy=no_privacy()), own, leaves)

    def read(self, message: bytes) -> np.ndarray:
        """The numbers of a message, as the server reads them."""
        silent = jax.tree.leaves(self.setup.algorithm.silent(self.broadcast))
        parts = decode(message, dimensions=[leaf.size for leaf in silent], limit=LARGEST)
        return np.concatenate([spread(part)[0] for part in parts]).astype(np.float64)

    def _run(self, setup: Setup, own: ClientExamples, leaves: list[np.ndarray]) -> ClientResult:
        request, links, double = self.request, setup.links, self.double
        state = jax.tree.unflatten(self.state_tree, leaves)
        features, counted = self._trained(own, double)
        rows: Any = (features[None], own.labels[None], np.array([self.places], np.int32), np.int32(0))
        if self.job.weighted:
            rows += (counted[None], np.array([self.slots], np.int32))
        seed: Any = np.uint32(self.config.seed)
        t: Any = np.int32(request.round)  # an array: otherwise every round would be compiled again
        key = jax.jit(client_key)(seed, t, np.int32(request.client))
        support = jax.jit(partial(shared_support, links))(seed, t, self.broadcast.x0) if links.has_support else None
        run = Compiled(self.job.digest, double)
        return client_round(setup, Examples(*rows), state, self.broadcast, t, key, support, run)

    def _trained(self, own: ClientExamples, double: bool) -> tuple[np.ndarray, np.ndarray]:
        """The rows as training sees them, and what each counts; an empty slot is zero."""
        counted = own.trained()
        seen = map_rows(own.features, self.standard, double)
        trained = np.where(counted[:, None] > 0, seen, seen.dtype.type(0))
        return cut_norms(trained, self.config.data.radius or 1.0) if double else trained, counted

    def curvature(self, own: ClientExamples, spend: SpendFn) -> bytes:
        """Return the noised gradient and curvature at the server's model; `spend` is called before any noise is drawn."""
        assert self.plan is not None, "checked before"
        features, counted = self._trained(own, True)
        loss, radius = self.setup.problem.loss, self.config.data.radius or 1.0
        rows, model = (features, own.labels, counted), np.asarray(self.broadcast.x0)
        noised = secure_curvature(loss, model, rows, self.slots, radius, self.plan.interval_multiplier, spend)
        return encode([make_part(noised.astype(np.float32), np.ones(noised.size, bool))])

    def evaluate(self, own: ClientExamples, spend: SpendFn) -> bytes:
        """Return noised counts or sums on the rows that are held out; `spend` is called before any noise is drawn."""
        evaluation = self.job.evaluation
        assert evaluation is not None
        counts = tally(self.job, self.setup.problem.loss, np.asarray(self.broadcast.x0), own, self.standard)
        sensitivity = tally_sensitivity(self.job, self.setup.problem.loss)
        noised = release_counts(counts, evaluation.noise_multiplier(self.config), self.places, spend, sensitivity)
        return encode([make_part(noised.astype(np.float32), np.ones(counts.size, bool))])

    def _secure(self, state: Any, spend: SpendFn) -> Mechanism:
        """Make the secure mechanism for this round from public values alone."""
        plan, request = self.plan, self.request
        assert plan is not None
        linear = self.setup.algorithm.linear_term(state, self.broadcast)
        exact = exact_noise(self.job, request.client, request.round, np.asarray(self.broadcast.x0), linear)
        return secure(plan.bound, plan.noise_multiplier, exact.margin, spend, exact.gaussian)


def _shapes(job: Job) -> Any:
    """The shapes of a broadcast and of a client's state. They are traced once for a job, like its programs."""
    programs, key = Compiled.programs, (job.digest, "shapes", False, "")
    if key not in programs:
        algorithm = job.setup[0].algorithm

        def first(x0: Any) -> Any:
            return algorithm.broadcast(algorithm.init_server(x0, 1)), algorithm.init_client(x0)

        programs[key] = jax.eval_shape(first, np.zeros(job.shape, np.float32))
    return programs[key]


class Compiled:
    """The two parts of `client_round` at a real client: compiled, and the part that sees data in float64.

    A process that answers a job again finds its programs here. They do not depend on the mechanism's functions, which run
    between the two parts.
    """

    programs: ClassVar[dict[tuple[str, str, bool, str], Any]] = {}
    most = 32

    def __init__(self, job: str, double: bool) -> None:
        self.job, self.double = job, double

    def __call__(self, name: str, function: Any) -> Any:
        double = self.double and name == "solve"

        def run(setup: Setup, *inputs: Any) -> Any:
            key = self.job, name, double, setup.privacy.mechanism  # a message without a mechanism holds the steps taken
            if len(self.programs) >= self.most:
                self.programs.clear()
            program = self.programs.setdefault(key, jax.jit(partial(function, setup)))
            with jax.enable_x64(double):
                return program(*jax.tree.map(partial(_in_precision, double), inputs))

        return run


def _in_precision(double: bool, leaf: Any) -> Any:
    """Convert floating-point arrays to the precision of this part; leave everything else."""
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return np.asarray(leaf, np.float64 if double else np.float32)
    return leaf


def _decode(vectors: bytes, like: Broadcast) -> Broadcast:
    """Decode the broadcast; refuse a model that is not finite or is huge."""
    leaves, tree = jax.tree.flatten(like)
    try:
        parts = decode(vectors, dimensions=[leaf.size for leaf in leaves], limit=LARGEST)
    except WireError as error:
        raise Refused("model", f"The model is refused ({error.reason}): {error}") from None
    values: list[Array | np.ndarray] = [spread(part)[0].reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(tree, values)
