"""A cohort of real processes on loopback sockets: members as in a deployment, without Flower in between.

    python -m fedpdm.engines.flower.cohort.local HOST PORT CLIENT STATE-DIR POLICY [DATA-DIR]

is one member. `Processes` starts them, sends steps and kills them.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any, Self

from fedpdm.engines.flower.client.client import Node
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.cohort.node import Step, answer_step
from fedpdm.engines.flower.protocol import Refused

__all__ = ["Processes", "serve"]

SECRET = "FEDPDM_COHORT_SECRET"  # the server's socket recognises its own processes by it
LOST = (EOFError, ConnectionError, BrokenPipeError)


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({k: {"hex": v.hex()} if isinstance(v, bytes) else v for k, v in fields.items()}).encode()


def _decode(message: bytes) -> dict[str, Any]:
    return {k: bytes.fromhex(v["hex"]) if isinstance(v, dict) else v for k, v in json.loads(message).items()}


def serve(address: tuple[str, int], node: Node) -> None:
    """Run a member's process: one step in, one answer out, until the server closes the connection.

    Parameters
    ----------
    address : (str, int)
        Host and port of the server.
    node : Node
        The member.
    """
    with Client(address, authkey=bytes.fromhex(os.environ[SECRET])) as pipe:
        pipe.send_bytes(_encode({"client": node.client}))
        while True:
            try:
                step = Step(**_decode(pipe.recv_bytes()))
            except LOST:
                return
            try:
                answer = {"answer": answer_step(node, step)}
            except Refused as refused:
                answer = {"refused": refused.name, "reason": refused.reason}
            pipe.send_bytes(_encode(answer))


class Processes:
    """Members' processes, which can be killed and started again.

    Parameters
    ----------
    nodes
        Client -> its state folder, policy and data.
    patience
        Seconds that the server waits for an answer.
    """

    def __init__(self, nodes: Mapping[int, Node], patience: float = 120.0) -> None:
        self._nodes, self._patience = dict(nodes), patience
        self._secret = os.urandom(32)
        self._listener = Listener(("127.0.0.1", 0), backlog=len(self._nodes), authkey=self._secret)
        self._running: dict[int, tuple[subprocess.Popen[bytes], Connection]] = {}
        self.victims: dict[int, str] = {}  # by member: the step after whose request it is killed
        self.refusals: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in list(self._running):
            self.kill(client)
        self._listener.close()

    def start(self) -> None:
        """Start all members that do not run, and wait until they are connected."""
        host, port = self._listener.address
        missing, started = [c for c in self._nodes if c not in self._running], {}
        for client in missing:
            node = self._nodes[client]
            more = [str(node.source.data_dir)] if node.source.data_dir else []
            arguments = [str(host), str(port), str(client), str(node.state_dir), str(node.policy), *more]
            node.state_dir.mkdir(parents=True, exist_ok=True)
            with (node.state_dir / "log").open("ab") as log:
                command = [sys.executable, "-m", "fedpdm.engines.flower.cohort.local", *arguments]
                environment = os.environ | {SECRET: self._secret.hex()}
                started[client] = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        for _ in missing:
            pipe: Any = self._listener.accept()
            client = _decode(pipe.recv_bytes())["client"]
            self._running[client] = started[client], pipe

    def kill(self, client: int) -> None:
        """Kill a member with SIGKILL."""
        process, pipe = self._running.pop(client)
        process.kill()
        process.wait()
        pipe.close()

    def exchange(self, steps: Mapping[int, Step]) -> dict[int, bytes]:
        """Send every member its step, kill the victims of this step, and return the answers of the others."""
        there = [client for client in steps if client in self._running]
        for client in there:
            with contextlib.suppress(*LOST):
                self._running[client][1].send_bytes(_encode(steps[client]._asdict()))
            if self.victims.get(client) == steps[client].name:
                self.kill(client)
        waiting = {self._running[client][1]: client for client in there if client in self._running}
        answers, until = {}, time.monotonic() + self._patience
        while waiting and time.monotonic() < until:
            for pipe in wait(list(waiting), 1.0):
                client = waiting.pop(pipe)  # type: ignore[arg-type]
                with contextlib.suppress(*LOST):
                    said = _decode(self._running[client][1].recv_bytes())
                    if "answer" in said:
                        answers[client] = said["answer"]
                    else:
                        self.refusals.append(f"member {client}: {said['refused']}: {said['reason']}")
        return answers


def main(host: str, port: str, client: str, state_dir: str, policy: str, data_dir: str | None = None) -> None:
    """Run one member."""
    source = NodeSource(int(client), None, None, Path(data_dir) if data_dir else None)
    serve((host, int(port)), Node(source, Path(state_dir), Path(policy)))


if __name__ == "__main__":
    main(*sys.argv[1:])
