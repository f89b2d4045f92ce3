"""The practical limit: a whole round of FedPDM or FedAvg as one program of machine code, with nothing that could be left out.

No noise, no sparsification, no measurements but the test accuracy, no checks, one loss, one penalty, one server rule. The
simulator is measured against it. It shares no code with the package.
"""

import numpy as np
from numba import njit, prange

FAST = {"reassoc", "contract", "arcp", "nsz"}
f = np.float32


@njit(fastmath=FAST, error_model="numpy", parallel=True)
def _round(features, labels, chosen, seed, steps, batch, eta, rho, beta, gamma, x0, duals, local):
    """One round in place: x0 [m, n], duals [N, m, n]; rho = 0 means FedAvg."""
    classes, n = x0.shape
    rows = labels.shape[1]
    for c in prange(len(chosen)):
        i = chosen[c]
        x = local[c]
        x[:] = x0
        order = np.arange(rows)
        state = np.uint64(seed * 1000003 + i * 7919 + 1)
        pulls = np.empty(batch, np.float32)
        for step in range(steps):
            for j in range(batch):
                place = step * batch + j
                state ^= state << np.uint64(13)
                state ^= state >> np.uint64(7)
                state ^= state << np.uint64(17)
                other = place + np.int64((state >> np.uint64(33)) % np.uint64(rows - place))
                order[place], order[other] = order[other], order[place]
                row, k = order[place], labels[i, order[place]]
                score = f(0.0)
                for q in range(n):
                    score += x[k, q] * features[i, row, q]
                pulls[j] = eta / f(batch) / (f(1.0) + np.exp(score))
            for k in range(classes):
                for q in range(n):
                    v = x[k, q]
                    bend = f(1.0) + v * v
                    x[k, q] = v - eta * (rho * (v - x0[k, q]) - duals[i, k, q] + beta * f(2.0) * v / (bend * bend))
            for j in range(batch):
                row = order[step * batch + j]
                k = labels[i, row]
                for q in range(n):
                    x[k, q] += pulls[j] * features[i, row, q]
        if rho > 0:
            for k in range(classes):
                for q in range(n):
                    duals[i, k, q] -= rho * (x[k, q] - x0[k, q])
                    x[k, q] -= duals[i, k, q] / rho
    threshold = gamma / rho if rho > 0 else gamma * eta * f(steps)
    for k in prange(classes):
        for q in range(n):
            total = f(0.0)
            for c in range(len(chosen)):
                total += local[c, k, q]
            mean = total / f(len(chosen))
            x0[k, q] = np.sign(mean) * max(abs(mean) - threshold, f(0.0))


class Reference:
    """A federation that this trains on."""

    def __init__(self, features, labels, test_features, test_labels, *, participants, steps, batch, eta, rho, beta, gamma):
        self.features, self.labels = features, labels
        self.test_features, self.test_labels = test_features, test_labels
        self.participants, self.steps, self.batch = participants, steps, batch
        self.numbers = tuple(f(number) for number in (eta, rho, beta, gamma))
        classes = int(labels.max()) + 1
        rng = np.random.default_rng(0)
        self.x0 = (0.01 * rng.normal(size=(classes, features.shape[2]))).astype(np.float32)
        self.duals = np.zeros((len(features), *self.x0.shape), np.float32)
        self.local = np.zeros((participants, *self.x0.shape), np.float32)
        self.rng, self.round = rng, 0

    def run(self, rounds: int) -> float:
        """So many rounds, with the test accuracy after every tenth; returns the last one."""
        accuracy = 0.0
        for _ in range(rounds):
            self.round += 1
            chosen = self.rng.choice(len(self.features), self.participants, replace=False)
            call = (chosen, self.round, self.steps, self.batch, *self.numbers, self.x0, self.duals, self.local)
            _round(self.features, self.labels, *call)
            if self.round % 10 == 0:
                accuracy = float(np.mean(np.argmax(self.test_features @ self.x0.T, axis=1) == self.test_labels))
        return accuracy
