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
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from workloads import RESULTS

from fedpdm.secure_sums.keys import agree, mask, pair_label, public_text, seal, verify
from fedpdm.secure_sums.member import KEY_BYTES, Member, agreement_statement, keys_statement
from fedpdm.secure_sums.messages import ProtocolError, pack, pack_numbers, unpack, unpack_words
from fedpdm.secure_sums.server import SumServer
from fedpdm.secure_sums.shamir import PIECE_BYTES, combine
from fedpdm.secure_sums.terms import Approval, Terms

PLACE = RESULTS / "secure_sums.json"
STEPS = ("advertise", "pieces", "masked", "agree", "reveal")
PATIENCE = 60.0  # seconds that the server waits for a member's answer
SIZES = (7_850, 39_700)
BITS = 32
MANY, REPEATS = 1000, 200


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


class Clock:
    """CPU seconds of one party; use it as a context."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._began


class Alone:
    """Member 1 with made-up peers, whose messages are as many and as long as real ones; a tenth of them send no share."""

    def __init__(self, members: int, words: int) -> None:
        self.identities, self.terms, approval = make_cohort(members, members // 10, members // 10, words)
        self.clock, self.up, self.down = Clock(), 0, len(self.terms.encode())
        self.peers = {n: X25519PrivateKey.generate() for n in range(2, members + 1)}
        self.context, self.everyone = self.terms.context(), list(range(1, members + 1))
        with self.clock:
            self.own = Member(self.identities[0], approval, self.terms)
            first = self.own.advertise()
        self.keys = {1: first} | {n: self._keys_of(n) for n in self.peers}
        self.up += len(first)

    def _keys_of(self, number: int) -> bytes:
        keys = 2 * self.peers[number].public_key().public_bytes_raw()
        return pack("keys", [keys, self.identities[number - 1].sign(keys_statement(self.context, keys))])

    def ask(self, step: str, message: bytes, *more: Any) -> bytes:
        with self.clock:
            answer = getattr(self.own, step)(message, *more)
        self.up, self.down = self.up + len(answer), self.down + len(message)
        return answer

    def run(self) -> dict[str, bytes]:
        """The member's four answers after its keys."""
        everybody = pack("all-keys", [pack_numbers(self.everyone), *self.keys.values()])
        answers = {"pieces": self.ask("pieces", everybody)}
        key = unpack("keys", self.keys[1], 2)[0][:KEY_BYTES]
        labels = {n: pair_label(b"seal", n, 1) for n in self.peers}
        sealed = [seal(agree(own, key, self.context, labels[n]), os.urandom(2 * PIECE_BYTES)) for n, own in self.peers.items()]
        share = words_of(1, self.terms)
        answers["masked"] = self.ask("masked", pack("own-pieces", [pack_numbers(list(self.peers)), *sealed]), lambda: share)
        self.survivors = self.everyone[: self.terms.least]
        answers["agree"] = self.ask("agree", pack("survivors", [pack_numbers(self.everyone), pack_numbers(self.survivors)]))
        statement = agreement_statement(self.context, everybody, self.everyone, self.survivors)
        signed = [self.identities[n - 1].sign(statement) for n in self.survivors]
        answers["reveal"] = self.ask("reveal", pack("agreements", [pack_numbers(self.survivors), *signed]))
        return answers


def computed_server(alone: Alone, answers: dict[str, bytes]) -> float:
    """CPU seconds of a server of many members, from measured parts: every kind of work once or for everybody."""
    terms, server, count = alone.terms, SumServer(alone.terms), len(alone.everyone)
    keys, member, opening, left = Clock(), Clock(), Clock(), Clock()
    with keys:
        for number, message in alone.keys.items():
            server.take_keys(number, message)
        everybody = server.all_keys()
    statement = agreement_statement(alone.context, everybody, alone.everyone, alone.survivors)
    with member:  # what arrives from one member, and what goes to it
        server.take_pieces(1, answers["pieces"])
        pack("own-pieces", unpack("pieces", answers["pieces"]))
        unpack_words(unpack("masked", answers["masked"], 1)[0], terms.words, terms.bits)
        verify(terms.roster[0], unpack("agreement", answers["agree"], 1)[0], statement)
        unpack("reveal", answers["reveal"])
        mask(bytes(32), alone.context, terms.words)
    with opening:
        holders = alone.everyone[: terms.cohort.threshold]
        combine([{holder: os.urandom(PIECE_BYTES) for holder in holders} for _ in alone.everyone])
    public = alone.peers[2].public_key().public_bytes_raw()
    with left:  # one dropout and one survivor
        for _ in range(REPEATS):
            mask(agree(alone.peers[3], public, alone.context, b"mask 2 3"), alone.context, terms.words)
    pairs = (count - terms.least) * terms.least
    return keys.seconds + count * member.seconds + opening.seconds + pairs * left.seconds / REPEATS


def measured_server(members: int, words: int) -> float:
    """CPU seconds of the server in a whole sum, a tenth of the members missing; the sum is compared with the shares."""
    identities, terms, approval = make_cohort(members, members // 10, members // 10, words)
    numbers, clock, server = range(1, members + 1), Clock(), SumServer(terms)
    cohort = {n: Member(identities[n - 1], approval, terms) for n in numbers}
    there = list(numbers)[: terms.least]  # the others vanish before they send their share

    def step(make: Any, take: Any, who: Any) -> None:
        for n in who:
            message = make(n)
            with clock:
                take(n, message)

    def timed(make: Any, *arguments: Any) -> Any:
        with clock:
            return make(*arguments)

    step(lambda n: cohort[n].advertise(), server.take_keys, numbers)
    everybody = timed(server.all_keys)
    step(lambda n: cohort[n].pieces(everybody), server.take_pieces, numbers)
    own = {n: timed(server.pieces_for, n) for n in there}
    step(lambda n: cohort[n].masked(own[n], lambda: words_of(n, terms)), server.take_masked, there)
    settled = timed(server.survivors_list)
    step(lambda n: cohort[n].agree(settled), server.take_agreement, there)
    signed = timed(server.agreements)
    step(lambda n: cohort[n].reveal(signed), server.take_reveal, there)
    expected = sum(words_of(n, terms).astype(object) for n in there)
    assert timed(server.open).tolist() == [int(v) % 2**BITS for v in expected]
    return clock.seconds


def cost_of(members: int, words: int) -> dict[str, Any]:
    """CPU seconds and bytes of a member, and the server's CPU seconds: computed from measured parts for 1,000 members."""
    tries = [Alone(members, words) for _ in range(1 if members == MANY else 5)]
    answers = [alone.run() for alone in tries]
    server = computed_server(tries[0], answers[0]) if members == MANY else measured_server(members, words)
    return {
        "members": members,
        "words": words,
        "member_cpu_seconds": round(statistics.median(alone.clock.seconds for alone in tries), 4),
        "member_bytes_up": tries[0].up,
        "member_bytes_down": tries[0].down,
        "plain_bytes_up": 4 * words,
        "server_cpu_seconds": round(server, 3),
        "server_computed": members == MANY,
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
        found["cost"] = [cost_of(members, words) for words in SIZES for members in (30, 100, MANY)]
        found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
        for row in found["cost"]:
            print(row)
    PLACE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
