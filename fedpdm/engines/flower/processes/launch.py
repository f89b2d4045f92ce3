"""A federation of real Flower processes on loopback: a SuperLink and SuperNodes, with TLS and authentication."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import tomlkit

from fedpdm.engines.flower.init import write_app
from fedpdm.engines.flower.processes.guard import guarded
from fedpdm.engines.flower.processes.keys import Certificates, make_certificates, make_node_key
from fedpdm.engines.flower.processes.watch import marked
from fedpdm.errors import UserError

__all__ = ["QUIET", "LocalFederation", "Stopped", "leave_on_sigterm"]

# Flower sends no telemetry, looks for no updates, and installs no dependencies of an app; Ray sends no telemetry.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}  # on one machine there is no reason to wait a second for every process
CONNECTION = "local-fedpdm"
START_SECONDS = 60.0
COMMAND_SECONDS = 600.0  # of Flower's own commands: seconds on a quiet machine, minutes on a very busy one
REVIVE_SECONDS = 5.0  # between two starts of a node that keeps ending


class Stopped(KeyboardInterrupt):
    """A signal asks this process to end; its only argument is the signal's number."""


def leave_on_sigterm() -> None:
    """Let SIGTERM and SIGHUP end this process as an interrupt from the keyboard does: it first stops what it started."""

    def leave(number: int, _: object) -> None:
        raise Stopped(number)

    signal.signal(signal.SIGTERM, leave)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` asks to go on when the terminal is closed
        signal.signal(signal.SIGHUP, leave)
    signal.signal(signal.SIGINT, leave)  # background jobs of a shell ignore it


def free_port() -> int:
    """Return a port on loopback without a listener at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class LocalFederation:
    """Starts Flower's processes and stops them again, also after an error.

    Parameters
    ----------
    folder : Path
        Keys, Flower's home, logs and the app go here.
    environment : dict of str to str, optional
        Further environment variables of all processes.
    """

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.folder = folder.absolute()
        self.certificates: Certificates = make_certificates(self.folder / "keys")
        self.port = free_port()
        tools = Path(sys.executable).parent
        self.environment = os.environ | QUIET | POLL | {"FLWR_HOME": str(self.folder / "flwr"), "PYTHONUNBUFFERED": "1"}
        self.environment |= {"PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}", **(environment or {})}
        self._tools = tools
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[dict[str, str], list[str]]] = {}
        self._again: dict[str, float] = {}  # by node: the earliest time of its next start
        self._write_connection()
        self._watcher = self._watch()

    def _watch(self) -> subprocess.Popen[bytes]:
        """Start the process that stops the others if this one is killed; nothing else holds the other end of its pipe."""
        mark = f"FLWR_HOME={self.environment['FLWR_HOME']}"
        command = [sys.executable, "-I", str(Path(__file__).with_name("watch.py")), mark]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _write_connection(self) -> None:
        document = {
            "superlink": {
                "default": CONNECTION,
                CONNECTION: {
                    "address": f"127.0.0.1:{self.port}",
                    "root-certificates": str(self.certificates.authority),
                },
            }
        }
        (self.folder / "flwr").mkdir(parents=True, exist_ok=True)
        (self.folder / "flwr" / "config.toml").write_text(tomlkit.dumps(document), encoding="utf-8")

    def start_superlink(self) -> None:
        """Start the SuperLink, and wait until it listens. Its state is in a database, so a restart remembers the nodes."""
        authority, certificate, key = map(str, self.certificates)
        self._start(
            self.environment,
            "superlink",
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-ca-certfile", authority, "--ssl-certfile", certificate, "--ssl-keyfile", key),
            *("--enable-supernode-auth", "--database", str(self.folder / "superlink.sqlite")),
        )
        until = time.monotonic() + START_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.processes["superlink"].poll() is not None or time.monotonic() > until:
                raise UserError(f"The SuperLink did not start: see {self.folder}/logs/superlink.log.")
            time.sleep(0.1)

    def register(self, name: str) -> Path:
        """Make a key for a node and register it at the SuperLink; return the private key."""
        private, public = make_node_key(self.folder / "keys", name)
        self.flwr("supernode", "register", str(public), CONNECTION)
        return private

    def start_node(self, name: str, key: Path, node_config: dict[str, Any], authority: Path | None = None) -> None:
        """Start a SuperNode; `node_config` is that of `fedpdm.engines.flower.client.app.node_of`."""
        text = " ".join(f"{k}={v}" if isinstance(v, int) else f'{k}="{v}"' for k, v in node_config.items())
        self._start(
            guarded(self.environment),
            name,
            *("flower-supernode", "--superlink", f"127.0.0.1:{self.port}"),
            *("--root-certificates", str(authority or self.certificates.authority)),
            *("--auth-supernode-private-key", str(key), "--port", str(free_port()), "--node-config", text),
        )

    def submit(self, options: dict[str, Any]) -> int:
        """Call `flwr run` with these options of the server (including its `job`); return Flower's number of the run."""
        app = write_app(self.folder / "app", options)
        said = json.loads(self.flwr("run", str(app), CONNECTION, "--format", "json"))
        if "run-id" not in said:  # Flower ends without an error if the SuperLink does not answer
            raise UserError(f"The SuperLink did not take the run: {said.get('error-message', said)}")
        return int(said["run-id"])

    def status(self, run: int) -> tuple[str, str]:
        """Return Flower's status of a run ("running", "finished:completed", "finished:failed", ...) and its last message."""
        listed = json.loads(self.flwr("ls", CONNECTION, "--run-id", str(run), "--format", "json"))
        entry = listed["runs"][0]
        return entry["status"], entry.get("status-details", "")

    def flwr(self, *arguments: str) -> str:
        """Run Flower's own command and return its output."""
        command = [str(self._tools / "flwr"), *arguments]
        how: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "timeout": COMMAND_SECONDS}
        try:
            done = subprocess.run(command, env=self.environment, **how)
        except subprocess.TimeoutExpired:
            raise UserError(f"`flwr {' '.join(arguments[:2])}` has not ended after {COMMAND_SECONDS:g} s.") from None
        if done.returncode:
            raise UserError(f"`flwr {' '.join(arguments[:2])}` failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def revive(self) -> None:
        """Restart nodes that have ended, as a supervisor of a real node does.

        After a kill -9 the SuperLink takes the old process for alive for up to a minute, and rejects the same key.
        """
        for name, process in list(self.processes.items()):
            if name.startswith("node-") and process.poll() is not None and time.monotonic() > self._again.get(name, 0.0):
                self._again[name] = time.monotonic() + REVIVE_SECONDS
                self._launch(name, *self._commands[name])

    def _start(self, environment: dict[str, str], name: str, program: str, *arguments: str) -> None:
        self._commands[name] = (environment, [str(self._tools / program), *arguments])
        self._launch(name, *self._commands[name])

    def _launch(self, name: str, environment: dict[str, str], command: list[str]) -> None:
        (self.folder / "logs").mkdir(exist_ok=True)
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that its children can be stopped with it
            )

    def _family(self, name: str) -> list[int]:
        """Return the ids of the named process and of its descendants."""
        family = [self.processes[name].pid]
        for parent in family:
            for entry in Path(f"/proc/{parent}/task").glob("*/children"):
                with suppress(OSError):  # it may have ended
                    family += map(int, entry.read_text().split())
        return family

    def find(self, name: str, program: str) -> list[int]:
        """Return the ids of this program's processes among the descendants of the named process."""
        wanted = program.encode()
        # a process that has ended, and that nobody has collected yet, keeps its name but has no command
        commands = {one: command for one in self._family(name) if (command := _read(one, "cmdline"))}
        return [one for one, command in commands.items() if wanted in command or wanted == _read(one, "comm").strip()]

    def left(self) -> list[int]:
        """Return the ids of all processes of this federation, by their environment: also orphans."""
        return marked(f"FLWR_HOME={self.environment['FLWR_HOME']}".encode())

    def kill(self, name: str) -> None:
        """Kill only this process with SIGKILL; its children live on, as after a real crash."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop_one(self, name: str, seconds: float = 10.0) -> None:
        """Stop a process and its descendants, also those in another session (Flower's SuperExec)."""
        family = self._family(name)
        self._end(family, seconds, self.processes.pop(name))

    def stop(self) -> None:
        """Stop everything that was started, the nodes first, then the orphans of killed processes."""
        for name in sorted(self.processes, key=lambda name: name == "superlink"):
            self.stop_one(name)
        self._end(self.left(), 2.0)
        if self._watcher.stdin:
            self._watcher.stdin.close()
        self._watcher.wait()

    def _end(self, processes: list[int], seconds: float, own: subprocess.Popen[bytes] | None = None) -> None:
        """Send SIGTERM, and SIGKILL after these seconds; return when all processes have ended."""
        for sent, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, seconds)):
            with suppress(ProcessLookupError):
                if own is not None:
                    os.killpg(own.pid, sent)  # it leads a session; without /proc there is no other way
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, sent)
            until = time.monotonic() + wait
            while time.monotonic() < until:
                processes = [process for process in processes if _read(process, "cmdline")]  # a zombie has none
                if not processes and (own is None or own.poll() is not None):
                    return
                time.sleep(0.05)


def _read(process: int, what: str) -> bytes:
    """Return a file of a process in /proc; empty if the process has ended."""
    try:
        return Path(f"/proc/{process}/{what}").read_bytes()
    except OSError:
        return b""
