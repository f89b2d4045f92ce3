"""Ctrl-C at random moments of real commands: how each ended. docs/command-line.md has the codes.

    python benchmarks/interrupts.py [--tries 20] [--out docs/results/benchmarks/interrupts.json]

A moment is a number of CPU seconds of the command, so that a busy machine does not move it. The first moments are those at
which Python itself has begun to heed interrupts. Before that the system ends the process (code 130 in a shell), and no program
can say a word.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

QUICK = ["--set", "data.name=digits", "--set", "data.clients=20", "--set", "rounds.participants=5", "--set", "rounds.total=400"]
COMMANDS = {
    "run": ["run", "plain", *QUICK, "--quiet"],
    "compare": ["compare", "plain", *QUICK, "--algorithms", "fedpdm,fedavg", "--seeds", "2"],
}
LATEST = 5.0  # CPU seconds
PATIENCE = 300.0  # seconds, after which an interrupt counts as swallowed


def heeds_interrupts(process: int) -> bool:
    """Whether the process has a handler for SIGINT."""
    caught = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGINT - 1))


def used(process: int) -> float:
    """CPU seconds of the process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one(words: list[str], moment: float) -> str:
    """Start a command, interrupt it at this moment, and return how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedpdm.cli", *words, "--out", f"{folder}/out"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not (heeds_interrupts(process.pid) and used(process.pid) >= moment):
            time.sleep(0.002)
        if process.poll() is not None:
            return "over before"
        os.kill(process.pid, signal.SIGINT)
        try:
            said = process.communicate(timeout=PATIENCE)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            return "swallowed"
    polite = said.strip().splitlines()[-1:] and said.strip().splitlines()[-1].startswith("fedpdm: interrupted")
    end = f"{process.returncode}, {'one line' if polite and 'Traceback' not in said else 'no line or a traceback'}"
    if end != "130, one line":
        print(f"at {moment:.3f} CPU s: {end}: {said[-600:]}", file=sys.stderr)
    return end


def main() -> None:
    """Interrupt every command so many times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    draw, found = random.Random(0), {}
    for name, words in COMMANDS.items():
        ends = Counter(one(words, draw.uniform(0.0, LATEST)) for _ in range(options.tries))
        found[name] = dict(ends)
        print(name, found[name], flush=True)
    if options.out:
        options.out.write_text(
            json.dumps({"tries": options.tries, "latest_cpu_seconds": LATEST, "ends": found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
