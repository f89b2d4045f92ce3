"""A table of a million rows and 20 columns: seconds and memory until all clients' rows are ready, and until the first line.

    python benchmarks/large_table.py                 # writes docs/results/benchmarks/large_table.json
    python benchmarks/large_table.py --rows 50000    # smaller; writes nothing

Ten clients have between 0.5 % and 35 % of the rows. Memory is the peak of the process above what it has after its imports, and
the table's own memory is 8 bytes for each of its cells. A CSV and a Parquet file are read, each in a fresh process.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "benchmarks" / "large_table.json"
COLUMNS = 20
SHARES = (0.35, 0.25, 0.15, 0.1, 0.06, 0.04, 0.02, 0.015, 0.01, 0.005)  # of the clients


def make(rows: int, folder: Path) -> list[Path]:
    """Write 15 columns of numbers, three of words, a client and a label, as CSV and as Parquet."""
    import polars as pl

    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(rows, 14)).round(3)
    words = [rng.integers(0, 4, rows) for _ in range(3)]
    scores = numbers @ rng.normal(size=14) + (words[0] == 1) + 2 * rng.logistic(size=rows)
    columns: dict[str, Any] = {f"x{place}": numbers[:, place] for place in range(14)}
    columns |= {f"c{place}": np.array(["red", "green", "blue", "grey"])[found] for place, found in enumerate(words)}
    columns |= {"age": rng.integers(18, 99, rows)}
    columns |= {"site": np.array([f"site {client}" for client in range(10)])[rng.choice(10, rows, p=SHARES)]}
    frame = pl.DataFrame(columns | {"y": (scores > 0).astype(int)})
    assert frame.width == COLUMNS
    frame.write_csv(folder / "table.csv")
    frame.write_parquet(folder / "table.parquet")
    return [folder / "table.csv", folder / "table.parquet"]


def resident(field: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1000


def child(path: str) -> None:
    """Read one file; print the figures as JSON."""
    import fedpdm.engines.simulation.build  # noqa: F401
    from fedpdm.config import load_config
    from fedpdm.data.prepare import build_federation

    importlib.import_module("polars")  # after fedpdm, which sets up its allocator

    print("imported", file=sys.stderr, flush=True)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began, used = resident("VmRSS"), time.perf_counter(), time.process_time()
    roles = ["data.label=y", "data.partition=column", "data.client_column=site"]
    federation = build_federation(load_config("table", [f"data.name={path}", *roles]))
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    found = {"seconds": seconds, "processor_seconds": processor, "peak_mb": resident("VmHWM") - before}
    found |= {"ready_mb": resident("VmRSS") - before, "features": len(federation.feature_names)}
    print(json.dumps({name: round(value, 1) for name, value in found.items()}))


def measure(path: Path, rows: int) -> dict[str, Any]:
    """One file in a process of its own; `first_line` is when it first said what it does, after its imports."""
    command = [sys.executable, str(Path(__file__)), "--child", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        process.stderr.readline()
        began = time.perf_counter()
        process.stderr.readline()
        first = time.perf_counter() - began
        said = process.stderr.read()
        told = process.stdout.read()
    if process.returncode:
        raise SystemExit(said)
    table = rows * COLUMNS * 8 / 1e6
    found = json.loads(told)
    more = {"table_mb": table, "times_the_table": round(found["peak_mb"] / table, 2), "first_line_seconds": round(first, 1)}
    return {"file": path.suffix, "rows": rows, "file_mb": round(path.stat().st_size / 1e6, 1), **found, **more}


def main() -> None:
    """Make the files, measure each."""
    parser = argparse.ArgumentParser(description="A large table.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--child", help="read this file, in this process")
    given = parser.parse_args()
    if given.child:
        child(given.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = [measure(path, given.rows) for path in make(given.rows, Path(folder))]
    result = {"load_average": os.getloadavg()[0], "cores": os.cpu_count(), "files": found}
    print(json.dumps(result, indent=2))
    if given.rows == 1_000_000:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
