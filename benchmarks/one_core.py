"""The processor time of a round against the Numba program, both on one core: for machines that are never quiet.

    python benchmarks/one_core.py [--repeats 7] [--workload W-mnist W-adult] [--out docs/results/benchmarks]

On one core nothing waits for other threads, and processor time does not count what other programs take. All runs alternate in
one process; a ratio is the median over the repeats. The time of memory still depends on what others read.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ["NUMBA_NUM_THREADS"] = "1"  # before Numba is imported
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
sys.path.insert(0, str(Path(__file__).parent))
from speed import THIN, ours, reference  # noqa: E402
from workloads import RESULTS, WORKLOADS, commit  # noqa: E402

NUMBA, PLAIN, ALL = "Numba reference, FedPDM", "fedpdm: fedpdm", "fedpdm: fedpdm, noise, clip, top-k 10 %"


def measure(workload: str, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of processor time a round, and ratios to the reference."""
    w = WORKLOADS[workload]
    runs = {NUMBA: reference(w, w.rho), PLAIN: ours(w), ALL: ours(w, *THIN)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            began = time.process_time()
            run(w.rounds)
            times[name].append(1e3 * (time.process_time() - began) / w.rounds)
    pairs = {name: [own / base for own, base in zip(found, times[NUMBA], strict=True)] for name, found in times.items()}
    return {
        name: {"cpu_ms": statistics.median(found), "least_cpu_ms": min(found), "ratio": statistics.median(pairs[name])}
        for name, found in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--workload", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = {"commit": commit(), "repeats": options.repeats, "load_before": os.getloadavg()[0]}
    for workload in options.workload:
        found[workload] = measure(workload, options.repeats)
        for name, row in found[workload].items():
            print(f"{workload}  {row['cpu_ms']:7.3f} CPU ms (least {row['least_cpu_ms']:.3f})  {row['ratio']:5.2f}  {name}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "one_core.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"Written: {options.out / 'one_core.json'}")


if __name__ == "__main__":
    main()
