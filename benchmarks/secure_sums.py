"""Secure sums: processes that are killed at random steps, and what the protocol costs.

    python benchmarks/secure_sums.py faults [--members 30] [--rounds 20] [--seed 0]
    python benchmarks/secure_sums.py cost

`faults`: every member is a process of its own, on pipes. In every round 20 % of them are killed (kill -9), each at a random
one of the five steps; every sum that is opened is compared with the survivors' whole numbers. `cost`: CPU seconds and bytes of
one member in one round. Results are in docs/results/benchmarks/secure_sums.json.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from workloads import RESULTS

from fedpdm.secure_sums.keys import public_text
from fedpdm.secure_sums.member import Member
from fedpdm.secure_sums.messages import ProtocolError
from fedpdm.secure_sums.server import SumServer
from fedpdm.secure_sums.terms import Approval, Terms

PLACE = RESULTS / "secure_sums.json"
STEPS = ("advertise", "pieces", "masked", "agree", "reveal")
PATIENCE = 60.0  # seconds that the server waits for a member's answer
SIZES = (7_850, 39_700)
BITS = 32


def make_cohort(members: int, colluding: int, dropouts: int, words: int) -> tuple[list[Ed25519PrivateKey], Terms, Approval]:
    identities = sorted((Ed25519PrivateKey.generate() for _ in range(members)), key=public_text)
    roster = tuple(public_text(identity) for identity in identities)
    terms = Terms("benchmark", 0, roster, "settings", 0.5, 2**20, BITS, members - dropouts, colluding, words)
    return identities, terms, Approval(frozenset(roster), members, colluding, dropouts)


def words_of(member: int, terms: Terms) -> np.ndarray:
    """Return this member's share of this round, which the benchmark uses to check the sum."""
    return np.random.default_rng([member, terms.round]).integers(0, 2**BITS, terms.words, dtype=np.uint32)


def serve(pipe: Connection, identity: bytes, approval: Approval) -> None:
    """A member's process: one message in, one out."""
    own, member = Ed25519PrivateKey.from_private_bytes(identity), None
    while True:
        step, message = pipe.recv()
        if step == "advertise":
            member = Member(own, approval, Terms.decode(message))
            pipe.send(member.advertise())
        elif member is not None and step == "masked":
            number, terms = member.number, member.terms
            pipe.send(member.masked(message, lambda n=number, t=terms: words_of(n, t)))
        elif member is not None:
            pipe.send(getattr(member, step)(message))


class Processes:
    """The members' processes, which can be killed and started again."""

    def __init__(self, identities: list[Ed25519PrivateKey], approval: Approval) -> None:
        self._identities, self._approval = identities, approval
        self._fork = multiprocessing.get_context("fork")
        self._running: dict[int, tuple[Any, Connection]] = {}

    def start(self) -> None:
        """Everybody that is not there."""
        for number, identity in enumerate(self._identities, 1):
            if number not in self._running:
                here, there = self._fork.Pipe()
                process = self._fork.Process(
                    target=serve, args=(there, identity.private_bytes_raw(), self._approval), daemon=True
                )
                process.start()
                there.close()
                self._running[number] = process, here

    def kill(self, number: int) -> None:
        process, pipe = self._running.pop(number)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        pipe.close()

    def ask(self, step: str, messages: dict[int, bytes], victims: set[int]) -> Iterator[tuple[int, bytes]]:
        """Send everybody its message, kill the victims, and give back the answers that come."""
        for number in [n for n in messages if n in self._running]:
            with contextlib.suppress(BrokenPipeError):
                self._running[number][1].send((step, messages[number]))
        for number in victims & set(self._running):
            self.kill(number)
        waiting = {self._running[n][1]: n for n in messages if n in self._running}
        until = time.monotonic() + PATIENCE
        while waiting and time.monotonic() < until:
            for pipe in wait(list(waiting), 1.0):
                number = waiting.pop(pipe)
                with contextlib.suppress(EOFError, ConnectionResetError):
                    yield number, pipe.recv()

    def stop(self) -> None:
        for number in list(self._running):
            self.kill(number)


def one_sum(terms: Terms, processes: Processes, dies: dict[int, str]) -> tuple[np.ndarray, list[int]]:
    """One round of the protocol over the processes; `dies` says who is killed at which step."""
    server, members = SumServer(terms), range(1, len(terms.roster) + 1)

    def victims(step: str) -> set[int]:
        return {number for number, when in dies.items() if when == step}

    makers = (
        (lambda n: server.invitation(), server.take_keys),
        (lambda n: everybody, server.take_pieces),
        (server.pieces_for, server.take_masked),
        (lambda n: settled, server.take_agreement),
        (lambda n: signed, server.take_reveal),
    )
    there = list(members)
    everybody = settled = signed = b""
    for step, (make, take) in zip(STEPS, makers, strict=True):
        if step == "pieces":
            everybody = server.all_keys()
        elif step == "agree":
            settled = server.survivors_list()
        elif step == "reveal":
            signed = server.agreements()
        came = []
        for number, answer in processes.ask(step, {n: make(n) for n in there}, victims(step)):
            with contextlib.suppress(ProtocolError):
                take(number, answer)
                came.append(number)
        there = came
    return server.open(), server.survivors


def faults(members: int, rounds: int, seed: int) -> dict[str, Any]:
    """Kill a fifth of the members in every round, at random steps."""
    colluding, dropouts = members // 10, members // 5
    identities, terms, approval = make_cohort(members, colluding, dropouts, SIZES[0])
    processes, chance = Processes(identities, approval), random.Random(seed)
    killed, opened, exact, began = 0, 0, 0, time.perf_counter()
    for number in range(rounds):
        processes.start()
        dies = {n: chance.choice(STEPS) for n in chance.sample(range(1, members + 1), dropouts)}
        now = Terms(**{**terms.__dict__, "round": number})
        total, survivors = one_sum(now, processes, dies)
        expected = sum(words_of(n, now).astype(object) for n in survivors)
        right = total.tolist() == [int(v) % 2**BITS for v in expected]
        killed, opened, exact = killed + len(dies), opened + 1, exact + right
        print(f"round {number}: {len(survivors)} of {members} in the sum, exact: {right}", flush=True)
    processes.stop()
    return {
        "members": members,
        "rounds": rounds,
        "words": SIZES[0],
        "colluding": colluding,
        "dropouts": dropouts,
        "killed": killed,
        "opened": opened,
        "exact": exact,
        "seconds": round(time.perf_counter() - began, 1),
    }


def cost_of(members: int, words: int) -> dict[str, Any]:
    """CPU seconds and bytes of member 1, with nobody and with a tenth of the members missing; the server's CPU seconds."""
    identities, terms, approval = make_cohort(members, members // 10, members // 10, words)
    numbers, spent, sent, got = range(1, members + 1), 0.0, 0, 0
    cohort = {n: Member(identities[n - 1], approval, terms) for n in numbers}
    server, server_seconds = SumServer(terms), 0.0
    missing = set(range(members - members // 10 + 1, members + 1))  # they vanish before they send their share

    def step(make: Any, take: Any, number: int, incoming: int) -> None:
        nonlocal spent, sent, got, server_seconds
        began = time.process_time()
        message = make()
        between = time.process_time()
        take(number, message)
        server_seconds += time.process_time() - between
        if number == 1:
            spent, sent, got = spent + between - began, sent + len(message), got + incoming

    for n in numbers:
        step(cohort[n].advertise, server.take_keys, n, len(server.invitation()))
    everybody = server.all_keys()
    for n in numbers:
        step(lambda n=n: cohort[n].pieces(everybody), server.take_pieces, n, len(everybody))
    there = [n for n in numbers if n not in missing]
    for n in there:
        own, words_now = server.pieces_for(n), words_of(n, terms)
        step(lambda n=n, own=own, w=words_now: cohort[n].masked(own, lambda: w), server.take_masked, n, len(own))
    settled = server.survivors_list()
    for n in there:
        step(lambda n=n: cohort[n].agree(settled), server.take_agreement, n, len(settled))
    signed = server.agreements()
    for n in there:
        step(lambda n=n: cohort[n].reveal(signed), server.take_reveal, n, len(signed))
    began = time.process_time()
    total = server.open()
    server_seconds += time.process_time() - began
    expected = sum(words_of(n, terms).astype(object) for n in there)
    assert total.tolist() == [int(v) % 2**BITS for v in expected]
    return {
        "members": members,
        "words": words,
        "member_cpu_seconds": round(spent, 4),
        "member_bytes_up": sent,
        "member_bytes_down": got,
        "plain_bytes_up": 4 * words,
        "server_cpu_seconds": round(server_seconds, 3),
    }


def scaled(rows: list[dict[str, Any]], words: int, members: int) -> dict[str, Any]:
    """A larger cohort from two measured ones: a member's work is linear in its peers, but for the pieces, K times threshold.

    So CPU seconds are fitted by a + b K + c K^2 through no more than two points with a = 0; bytes by a line, which is exact.
    """
    small, large = (next(r for r in rows if r["words"] == words and r["members"] == k) for k in (30, 100))
    grid = np.array([[30.0, 900.0], [100.0, 10_000.0]])

    def quadratic(key: str) -> float:
        return float(np.linalg.solve(grid, [small[key], large[key]]) @ [members, members**2])

    def line(key: str) -> int:
        slope = (large[key] - small[key]) / 70
        return round(large[key] + slope * (members - 100))

    return {
        "members": members,
        "words": words,
        "member_cpu_seconds": round(quadratic("member_cpu_seconds"), 2),
        "member_bytes_up": line("member_bytes_up"),
        "member_bytes_down": line("member_bytes_down"),
        "plain_bytes_up": 4 * words,
        "server_cpu_seconds": round(quadratic("server_cpu_seconds"), 1),
        "computed": True,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["faults", "cost"])
    parser.add_argument("--members", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = json.loads(PLACE.read_text()) if PLACE.exists() else {}
    if arguments.what == "faults":
        found["faults"] = faults(arguments.members, arguments.rounds, arguments.seed)
        print(found["faults"])
    else:
        rows = [cost_of(members, words) for words in SIZES for members in (30, 100)]
        found["cost"] = rows + [scaled(rows, words, 1000) for words in SIZES]
        found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
        for row in found["cost"]:
            print(row)
    PLACE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
