"""Cohen's kappa: agreement beyond chance."""

import numpy as np

from fedpdm.metrics import Estimate, Predictions


def kappa(rows: Predictions) -> Estimate:
    table = rows.confusion() / len(rows.labels)
    chance = float(table.sum(axis=0) @ table.sum(axis=1))
    return Estimate((float(np.trace(table)) - chance) / (1 - chance))
