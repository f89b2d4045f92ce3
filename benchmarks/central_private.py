"""Central private training by diffprivlib: reads rows from a file, prints the scores of the test rows as JSON.

It runs in the environment of benchmarks/peers/diffprivlib.txt, which needs an older scikit-learn.
"""

import json
import sys
import warnings

import numpy as np
from diffprivlib.models import LogisticRegression


def main(path: str, epsilon: float, seeds: list[int]) -> None:
    """Rows have norm 1 at most, and a column of ones among them."""
    warnings.simplefilter("ignore")
    with np.load(path) as file:
        rows, labels, test = file["rows"], file["labels"], file["test"]
    found = []
    for seed in seeds:
        model = LogisticRegression(epsilon=epsilon, data_norm=1.0, fit_intercept=False, max_iter=1000, random_state=seed)
        found.append((test @ model.fit(rows, labels).coef_[0]).tolist())
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), [int(seed) for seed in sys.argv[3:]])
