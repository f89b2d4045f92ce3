"""A hostile server against two clients whose data differ in one row: a million requests, and nothing that tells them apart.

    python benchmarks/fuzz_node.py --pairs 1000000 --out docs/results/benchmarks/fuzz_node.json
    python benchmarks/fuzz_node.py --introductions 10000

The requests are those of tests/flower/hostile_kit.py. The second form sends so many introductions with ever new jobs to one
client, and says how much disk and memory that took.
"""

import argparse
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flower"))

from hostile_kit import JOBS, POLICY, ROWS, TEXTS, Pair, hostile

from fedpdm.engines.flower.client.client import Node, introduce
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.job import parse_job
from fedpdm.engines.flower.protocol import Meeting

IN_ONE = 100


def pairs(count: int) -> dict[str, Any]:
    """Send so many requests to pairs of neighbours; a difference ends it with what was sent."""
    codes: Counter[str] = Counter()

    @settings(
        max_examples=count // IN_ONE,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.generate],
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        rows = data.draw(ROWS)
        pair = Pair(rows, data.draw(st.integers(0, len(rows) - 1)))
        try:
            for asked in data.draw(st.lists(hostile(), min_size=IN_ONE, max_size=IN_ONE)):
                one, other = pair.ask(asked)
                assert one == other, (one, other)
                codes[(one if isinstance(asked, Meeting) else one[0]).refused or "answered"] += 1
            assert len({json.dumps(kept) for kept in pair.kept()}) == 1
        finally:
            pair.close()

    began = time.perf_counter()
    run()
    return {"pairs": sum(codes.values()), "differences": 0, "codes": dict(codes), "seconds": round(time.perf_counter() - began)}


def introductions(count: int) -> dict[str, Any]:
    """Offer so many different jobs to one client."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "policy.toml").write_text(POLICY)
        node = Node(NodeSource(0, None, None, None), folder / "state", folder / "policy.toml")
        codes: Counter[str] = Counter()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(count):
            text = TEXTS[0].replace(JOBS[0].id, f"{number:032x}").replace("seed = 0\n", f"seed = {number}\n", 1)
            codes[introduce(node, Meeting(parse_job(text).digest, text)).refused or "taken"] += 1
        size = sum(path.stat().st_size for path in (folder / "state").rglob("*") if path.is_file())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "introductions": count,
        "codes": dict(codes),
        "bytes_on_disk": size,
        "more_memory_mebibytes": round(memory / 1024, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--introductions", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):  # the nodes' own logs
        result = (pairs(arguments.pairs) if arguments.pairs else {}) | (
            introductions(arguments.introductions) if arguments.introductions else {}
        )
    print(json.dumps(result, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
