"""The computation of one client's message: `client_round`, compiled, with the noise of a real client in between."""

import math
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
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Refused, Request
from fedpdm.metrics import count, vector_of
from fedpdm.privacy.evaluation import release_counts
from fedpdm.privacy.mechanism import Mechanism, Release, no_privacy, secure
from fedpdm.privacy.noise import SecureGaussian
from fedpdm.privacy.rounding import Shape, iterate_bound, sensitivity_margin
from fedpdm.rounds import ClientResult, Setup, client_key, client_round
from fedpdm.setup.class_weights import heaviest_weight

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
        return f"{self.plan.mode if self.plan else ''}, {self.job.noise} noise"

    @property
    def double(self) -> bool:
        """Whether the part that sees data is computed in float64."""
        return self.plan is not None and self.job.noise == "secure"

    def first_state(self) -> list[np.ndarray]:
        """Return the state of a client that has not taken part yet."""
        if self.request.task == "evaluate":
            return []
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.setup.algorithm.init_client(self.broadcast.x0))]

    def make(self, own: ClientExamples, leaves: list[np.ndarray], spend: SpendFn) -> ClientResult:
        """Run `client_round`; `spend(sensitivity, sigma)` is called before any noise is drawn."""
        setup = self.setup
        if self.double:
            state = jax.tree.unflatten(self.state_tree, leaves)
            setup = setup._replace(privacy=self._secure(state, self.config.data.radius or 1.0, spend))
        elif self.plan:
            sensitivity = self.plan.sensitivity(_step_size(setup, self.request.round), self.slots)
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
        counted = own.trained()
        seen = map_rows(own.features, self.standard, double)
        trained = np.where(counted[:, None] > 0, seen, seen.dtype.type(0))  # an empty slot is zero
        features = cut_norms(trained, self.config.data.radius or 1.0) if double else trained
        rows: Any = (features[None], own.labels[None], np.array([self.places], np.int32), np.int32(0))
        if self.job.unit:
            rows += (counted[None], np.array([self.slots], np.int32))
        seed: Any = np.uint32(self.config.seed)
        t: Any = np.int32(request.round)  # an array: otherwise every round would be compiled again
        key = jax.jit(client_key)(seed, t, np.int32(request.client))
        support = jax.jit(partial(shared_support, links))(seed, t, self.broadcast.x0) if links.has_support else None
        run = Compiled(self.job.digest, double)
        return client_round(setup, Examples(*rows), state, self.broadcast, t, key, support, run)

    def evaluate(self, own: ClientExamples, spend: SpendFn) -> bytes:
        """Return noised counts on the rows that are held out; `spend` is called before any noise is drawn."""
        evaluation, rows = self.job.evaluation, own.held_out & own.filled
        assert evaluation is not None
        features = own.features if self.standard is None else self.standard.apply(own.features)
        scores = self.setup.problem.loss.scores(jnp.asarray(self.broadcast.x0), jnp.asarray(features))
        shares = self._link(np.nan_to_num(np.asarray(scores, np.float64)))[rows]
        threshold = self.config.metrics.threshold
        cut = threshold if isinstance(threshold, float) and len(self.job.classes) == 2 else None
        counts = vector_of(count(np.nan_to_num(shares), own.labels[rows], cut, evaluation.bins, own.weights[rows]))
        noised = release_counts(counts, evaluation.noise_multiplier(self.config), self.places, spend)
        return encode([make_part(noised.astype(np.float32), np.ones(counts.size, bool))])

    def _link(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities of the classes; where the loss has no link to them, those of a softmax."""
        link = self.setup.problem.loss.link
        if link is not None:
            return link.apply(scores)
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        return shifted / shifted.sum(axis=1, keepdims=True)

    def _secure(self, state: Any, radius: float, spend: SpendFn) -> Mechanism:
        """Make the secure mechanism for this round from public values alone."""
        plan, setup, t = self.plan, self.setup, self.request.round
        assert plan is not None
        step_size = _step_size(setup, t)
        public: Any = Release(step_size, float(self.slots), setup.local.steps, 0.0, None)  # type: ignore[arg-type]
        bound = float(plan.bound(public))
        shape = Shape(
            examples=self.places,
            features=self.job.width,
            classes=self.job.shape[0],
            radius=radius,
            weight=setup.algorithm.weight,
            beta=setup.problem.beta,
            step_size=step_size,
            steps=setup.local.steps,
            start=float(np.linalg.norm(self.broadcast.x0)),
            slope=float(np.linalg.norm(setup.algorithm.linear_term(state, self.broadcast))),
            heaviest=heaviest_weight(self.config),
            curvature=setup.problem.loss.smoothness(1.0),
        )
        strong = setup.algorithm.weight - setup.problem.beta / 2 if plan.mode == "certified" else None
        margin = sensitivity_margin(shape, strong)
        lattice = 2**24
        while plan.noise_multiplier * bound * lattice < 2**12 and lattice < 2**40:
            lattice *= 2
        if not (iterate_bound(shape) < 2.0**51 / lattice and margin < bound):
            raise Refused("model", f"From a model of norm {shape.start:.3g} the local steps move too far for exact noise.")
        return secure(plan.bound, plan.noise_multiplier, margin, spend, SecureGaussian(lattice))


def _shapes(job: Job) -> Any:
    """The shapes of a broadcast and of a client's state. They are traced once for a job, like its programs."""
    programs, key = Compiled.programs, (job.digest, "shapes", False)
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

    programs: ClassVar[dict[tuple[str, str, bool], Any]] = {}
    most = 32

    def __init__(self, job: str, double: bool) -> None:
        self.job, self.double = job, double

    def __call__(self, name: str, function: Any) -> Any:
        double = self.double and name == "solve"
        key = self.job, name, double

        def run(setup: Setup, *inputs: Any) -> Any:
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


def _step_size(setup: Setup, round_index: int) -> float:
    """Return `step_size_at` in plain numbers."""
    return setup.local.step_size / (math.sqrt(1.0 + round_index) if setup.local.schedule == "inverse-sqrt" else 1.0)


def _decode(vectors: bytes, like: Broadcast) -> Broadcast:
    """Decode the broadcast; refuse a model that is not finite or is huge."""
    leaves, tree = jax.tree.flatten(like)
    try:
        parts = decode(vectors, dimensions=[leaf.size for leaf in leaves], limit=LARGEST)
    except WireError as error:
        raise Refused("model", f"The model is refused ({error.reason}): {error}") from None
    values: list[Array | np.ndarray] = [spread(part)[0].reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(tree, values)
