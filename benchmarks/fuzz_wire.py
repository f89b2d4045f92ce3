"""Coverage-guided fuzzing of the receiver, with Atheris (not a dependency: pip install atheris).

    JAX_PLATFORMS=cpu python benchmarks/fuzz_wire.py [--runs 1000000] [--seed 1]

An input is a byte that chooses what the receiver expects and whether the rest is a whole message or a payload that gets a
right header and checksum, so that most inputs reach the parts behind it. The receiver must either raise WireError or accept;
what it accepts must be in order and encode to the same bytes. Anything else stops the run, and the input is kept in a file.
"""

import argparse
import collections
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["fedpdm.compression"]):
    from fedpdm.compression import indices, values, wire  # noqa: F401  (named, so that they are instrumented)

import numpy as np

LIMIT = 100.0
EXPECTED = [  # dimensions, supports
    ([1], None),
    ([20], None),
    ([100], None),
    ([300], None),
    ([50], [np.array([0, 7, 8, 49])]),
    ([60, 40], None),
    ([60, 40], [None, np.array([3, 5])]),
    ([2**31], None),
]


class Check:
    """Counts what happens to the inputs, and stops at the first wrong accept."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.seen = 0
        self.verdicts: collections.Counter[str] = collections.Counter()

    def __call__(self, data: bytes) -> None:
        self.seen += 1
        if data:
            self.verdicts[self.verdict(data[0], data[1:])] += 1
        if self.seen == self.runs:
            print(f"{self.seen} inputs:", ", ".join(f"{n} {name}" for name, n in self.verdicts.most_common()), flush=True)

    def verdict(self, choice: int, data: bytes) -> str:
        dimensions, supports = EXPECTED[choice % len(EXPECTED)]
        if choice < 224:
            data = wire._seal(len(dimensions), data)
        try:
            parts = wire.decode(data, dimensions=dimensions, supports=supports, limit=LIMIT)
        except wire.WireError as error:
            return error.reason
        if wire.encode(parts) != data:
            raise AssertionError("accepted what encodes to other bytes")
        for part, dimension in zip(parts, dimensions, strict=True):
            where = np.arange(part.values.size) if part.indices is None else part.indices
            if not (where[0] >= 0 and where[-1] < dimension and np.all(np.diff(where) > 0)):
                raise AssertionError("accepted indices out of order")
            if where.shape != part.values.shape or not np.all(np.abs(part.values) <= LIMIT):
                raise AssertionError("accepted values out of range")
        return "accepted"


def write_seeds(folder: Path) -> None:
    """One good payload for every coding, kind and expectation, as far as they go together."""
    rng = np.random.default_rng(0)
    for choice, (dimensions, supports) in enumerate(EXPECTED[:-1]):
        for kind in values.KINDS:
            for ratio in (0.01, 0.1, 0.35, 0.9, 1.0):
                parts = []
                for dimension, support in zip(dimensions, supports or [None] * len(dimensions), strict=True):
                    mask = np.zeros(dimension, bool)
                    mask[rng.permutation(dimension)[: max(1, int(ratio * dimension))] if support is None else support] = True
                    parts.append(wire.make_part(rng.normal(size=dimension), mask, shared=support is not None))
                message = wire.encode(parts, kind)
                name = f"{choice}-{kind}-{ratio}"
                (folder / name).write_bytes(bytes([choice]) + message[wire.HEADER_BYTES :])
                (folder / f"{name}-whole").write_bytes(bytes([224 + choice]) + message)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    corpus = Path(tempfile.mkdtemp(prefix="fuzz-wire-"))
    write_seeds(corpus)
    options = [f"-runs={arguments.runs}", f"-seed={arguments.seed}", "-max_len=1500", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={corpus}-", str(corpus)], Check(arguments.runs))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
