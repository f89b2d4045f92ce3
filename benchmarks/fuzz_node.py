"""A hostile server against two clients whose data differ in one person: a million requests, and nothing that tells them apart.

    python benchmarks/fuzz_node.py --pairs 1000000 --out docs/results/benchmarks/fuzz_node.json
    python benchmarks/fuzz_node.py --introductions 10000 --out docs/results/benchmarks/introductions.json

The requests are those of tests/flower/hostile_kit.py. They come in batches, each with a seed of its own; the file is written
after every batch, and a run that was stopped continues after the last one. A difference ends the run and prints the request.
The second form sends this number of introductions with new jobs to one client, and prints the disk and memory that they took.
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
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flower"))

from hostile_kit import JOBS, POLICY, TEXTS, hostile, neighbours
from workloads import commit

from fedpdm.engines.flower.client import held_jobs
from fedpdm.engines.flower.client.client import Node, introduce
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.job import Job, parse_job
from fedpdm.engines.flower.protocol import Meeting
from fedpdm.errors import ConfigError
from fedpdm.runs.folder import atomic_write

IN_ONE, IN_BATCH = 100, 5000


def batch(seed: int, count: int) -> dict[str, Any]:
    """Send this number of requests to pairs of neighbours; a difference is an AssertionError."""
    draw, codes, began = Random(seed), Counter[str](), time.process_time()
    for _ in range(count // IN_ONE):
        pair = neighbours(draw)
        try:
            for _ in range(IN_ONE):
                asked = hostile(draw)
                one, other = pair.ask(asked)
                assert one == other, (seed, asked, one, other)
                codes[(one if isinstance(asked, Meeting) else one[0]).refused or "answered"] += 1
            kept = pair.kept()
            assert json.dumps(kept[0]) == json.dumps(kept[1]), (seed, kept)
        finally:
            pair.close()
    seconds = round(time.process_time() - began, 1)
    return {"seed": seed, "commit": commit(), "pairs": sum(codes.values()), "cpu_seconds": seconds, "codes": dict(codes)}


def parsed(text: str) -> Job:
    """As `parse_job`, with what it said before."""
    said = _parsed(text)
    if isinstance(said, Exception):
        raise said
    return said


@lru_cache(maxsize=500)
def _parsed(text: str) -> Job | ConfigError:
    try:
        return parse_job(text)
    except ConfigError as error:
        return error


def pairs(count: int, out: Path) -> dict[str, Any]:
    """Run batch after batch until the file has this number of pairs."""
    held_jobs.parse_job = parsed  # the same few offers again and again; it sees no row
    commit()
    done: list[dict[str, Any]] = json.loads(out.read_text())["batches"] if out.exists() else []
    while sum(each["pairs"] for each in done) < count:
        done.append(batch(len(done), IN_BATCH))
        atomic_write(out, (json.dumps(_summary(done), indent=1) + "\n").encode())
    return {key: value for key, value in _summary(done).items() if key != "batches"}


def _summary(batches: list[dict[str, Any]]) -> dict[str, Any]:
    commits, codes = Counter[str](), Counter[str]()
    for each in batches:
        commits[each["commit"]] += each["pairs"]
        codes.update(each["codes"])
    return {
        "command": "python benchmarks/fuzz_node.py --pairs 1000000 --out docs/results/benchmarks/fuzz_node.json",
        "pairs": sum(codes.values()),
        "differences": 0,  # one would have ended the run
        "pairs_by_commit": dict(commits),
        "cpu_seconds": round(sum(each["cpu_seconds"] for each in batches)),
        "codes": dict(codes.most_common()),
        "batches": [{key: each[key] for key in ("seed", "commit", "pairs", "cpu_seconds", "codes")} for each in batches],
    }


def introductions(count: int) -> dict[str, Any]:
    """Offer so many different jobs to one client; what it holds is measured on the way."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "policy.toml").write_text(POLICY)
        node = Node(NodeSource(0, None, None, None), folder / "state", folder / "policy.toml")
        codes, held, loaded = Counter[str](), [], commit()
        for number in range(1, count + 1):
            text = TEXTS[0].replace(JOBS[0].id, f"{number:032x}").replace("seed = 0\n", f"seed = {number}\n", 1)
            codes[introduce(node, Meeting(parse_job(text).digest, text)).refused or "taken"] += 1
            if number in (count // 100, count // 10, count // 2, count):
                size = sum(path.stat().st_size for path in (folder / "state").rglob("*") if path.is_file())
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                held.append({"introductions": number, "bytes_on_disk": size, "most_memory_mebibytes": round(memory, 1)})
    command = f"python benchmarks/fuzz_node.py --introductions {count} --out docs/results/benchmarks/introductions.json"
    return {"command": command, "commit": loaded, "codes": dict(codes), "held": held}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--pairs", type=int)
    what.add_argument("--introductions", type=int)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):  # the nodes' own logs
        if arguments.pairs:
            result = pairs(arguments.pairs, arguments.out)
        else:
            result = introductions(arguments.introductions)
            atomic_write(arguments.out, (json.dumps(result, indent=2) + "\n").encode())
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
