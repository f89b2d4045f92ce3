"""A reference: a whole round of FedPDM or FedAvg as one program of machine code, with nothing that could be left out.

No noise, no sparsification, no measurements but the test accuracy, no checks, one loss, one penalty, one server rule. The
simulator is measured against it. It shares no code with the package.
"""

import numpy as np
from numba import njit, prange

FAST = {"reassoc", "contract", "arcp", "nsz"}
f = np.float32


@njit(fastmath=FAST, error_model="numpy")
def _dot(x, a):
    total = f(0.0)
    for q in range(a.shape[0]):
        total += x[q] * a[q]
    return total


@njit(fastmath=FAST, error_model="numpy")
def _add(x, factor, a):
    for q in range(a.shape[0]):
        x[q] += factor * a[q]


@njit(fastmath=FAST, error_model="numpy")
def _drift(x, fixed, eta, rho, beta):
    for q in range(x.shape[0]):
        bend = f(1.0) + x[q] * x[q]
        x[q] -= eta * (fixed[q] + rho * x[q] + beta * f(2.0) * x[q] / (bend * bend))


@njit(fastmath=FAST, error_model="numpy")
def _client(features, labels, state, steps, batch, eta, rho, beta, x0, dual, x):
    """The steps of one client from x0, in place in x [m, n]; a new order of the rows by Fisher and Yates."""
    rows = len(features)
    flat = x.reshape(x.size)
    flat[:] = x0
    fixed = -dual - rho * x0
    order = np.arange(rows)
    pulls = np.empty(batch, np.float32)
    for step in range(steps):
        for j in range(batch):
            place = step * batch + j
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
            other = place + np.int64((state >> np.uint64(33)) % np.uint64(rows - place))
            order[place], order[other] = order[other], order[place]
            row = order[place]
            pulls[j] = eta / f(batch) / (f(1.0) + np.exp(_dot(x[labels[row]], features[row])))
        _drift(flat, fixed, eta, rho, beta)
        for j in range(batch):
            row = order[step * batch + j]
            _add(x[labels[row]], pulls[j], features[row])


@njit(fastmath=FAST, error_model="numpy", parallel=True)
def _round(features, labels, chosen, seed, steps, batch, eta, rho, beta, gamma, x0, duals, local):
    """One round in place: x0 [m n], duals [N, m n], local [K, m, n]; rho = 0 means FedAvg."""
    for c in prange(len(chosen)):
        i = chosen[c]
        state = np.uint64(seed * 1000003 + i * 7919 + 1)
        _client(features[i], labels[i], state, steps, batch, eta, rho, beta, x0, duals[i], local[c])
        if rho > 0:
            x = local[c].reshape(x0.size)
            for q in range(x0.size):
                duals[i, q] -= rho * (x[q] - x0[q])
                x[q] -= duals[i, q] / rho
    threshold = gamma / rho if rho > 0 else gamma * eta * f(steps)
    total = np.zeros(x0.size, np.float32)
    for c in range(len(chosen)):
        _add(total, f(1.0) / f(len(chosen)), local[c].reshape(x0.size))
    for q in range(x0.size):
        x0[q] = np.sign(total[q]) * max(abs(total[q]) - threshold, f(0.0))


@njit(fastmath=FAST, error_model="numpy", parallel=True)
def _accuracy(features, labels, model):
    right = 0
    for row in prange(len(labels)):
        best, largest = 0, _dot(model[0], features[row])
        for k in range(1, len(model)):
            score = _dot(model[k], features[row])
            if score > largest:
                best, largest = k, score
        right += best == labels[row]
    return right / len(labels)


class Reference:
    """A federation that this trains on."""

    def __init__(self, features, labels, test_features, test_labels, *, participants, steps, batch, eta, rho, beta, gamma):
        self.features, self.labels = features, labels
        self.test_features, self.test_labels = test_features, test_labels
        self.participants, self.steps, self.batch = participants, steps, batch
        self.numbers = tuple(f(number) for number in (eta, rho, beta, gamma))
        classes, n = int(labels.max()) + 1, features.shape[2]
        rng = np.random.default_rng(0)
        self.x0 = (0.01 * rng.normal(size=classes * n)).astype(np.float32)
        self.duals = np.zeros((len(features), classes * n), np.float32)
        self.local = np.zeros((participants, classes, n), np.float32)
        self.rng, self.round = rng, 0

    def run(self, rounds: int) -> float:
        """Run a number of rounds, with the test accuracy after every tenth; return the last one."""
        accuracy = 0.0
        for _ in range(rounds):
            self.round += 1
            chosen = self.rng.choice(len(self.features), self.participants, replace=False)
            call = (chosen, self.round, self.steps, self.batch, *self.numbers, self.x0, self.duals, self.local)
            _round(self.features, self.labels, *call)
            if self.round % 10 == 0:
                model = self.x0.reshape(self.local.shape[1:])
                accuracy = _accuracy(self.test_features, self.test_labels, model)
        return accuracy
