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
from fedpdm.errors import UserError

__all__ = ["QUIET", "LocalFederation", "leave_on_sigterm"]

# Flower reports nothing to its makers, looks for no updates, and installs nothing that an app asks for; Ray reports nothing.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}  # on one machine there is no reason to wait a second for every process
CONNECTION = "local-fedpdm"
START_SECONDS = 60.0
REVIVE_SECONDS = 5.0  # between two starts of a node that ends again


def leave_on_sigterm() -> None:
    """Let SIGTERM end this process as an interrupt from the keyboard does: what it started is stopped first."""

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)  # a shell makes its background jobs deaf to it


def free_port() -> int:
    """A port on loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class LocalFederation:
    """Starts Flower's processes and stops them again, whatever happens in between.

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
        self._again: dict[str, float] = {}  # when a node that ended may be started next
        self._write_connection()

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
        """Start the SuperLink, and wait until it listens. What it knows is in a database, so a restart remembers the nodes."""
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
                raise UserError(f"The SuperLink did not start: {self.folder}/logs/superlink.log says why.")
            time.sleep(0.1)

    def register(self, name: str) -> Path:
        """Make a key for a node and tell the SuperLink of it; returns the private key."""
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
        """`flwr run` with these options of the server (its `job` among them): returns Flower's number of the run."""
        app = write_app(self.folder / "app", options)
        said = json.loads(self.flwr("run", str(app), CONNECTION, "--format", "json"))
        if "run-id" not in said:  # Flower ends without an error when the SuperLink is not there
            raise UserError(f"The SuperLink did not take the run: {said.get('error-message', said)}")
        return int(said["run-id"])

    def status(self, run: int) -> tuple[str, str]:
        """How Flower says that a run goes ("running", "finished:completed", "finished:failed", ...), and its last words."""
        listed = json.loads(self.flwr("ls", CONNECTION, "--run-id", str(run), "--format", "json"))
        entry = listed["runs"][0]
        return entry["status"], entry.get("status-details", "")

    def flwr(self, *arguments: str) -> str:
        """Run Flower's own command and return what it prints."""
        command = [str(self._tools / "flwr"), *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise UserError(f"`flwr {' '.join(arguments[:2])}` failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def revive(self) -> None:
        """Start nodes again that have ended, as a supervisor of a real node does.

        After a kill -9 the SuperLink takes the old process for alive for up to a minute, and turns the same key away.
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
                start_new_session=True,  # so that what it starts can be stopped with it
            )

    def _family(self, name: str) -> list[int]:
        """The ids of the named process and of what it started, directly or not."""
        family = [self.processes[name].pid]
        for parent in family:
            for entry in Path(f"/proc/{parent}/task").glob("*/children"):
                with suppress(OSError):  # it has ended meanwhile
                    family += map(int, entry.read_text().split())
        return family

    def find(self, name: str, program: str) -> list[int]:
        """The ids of the processes of this program that the named process started, directly or not."""
        return [process for process in self._family(name) if program.encode() in _read(process, "cmdline")]

    def left(self) -> list[int]:
        """The ids of all processes of this federation, told by their environment: also of those whose parents are gone."""
        mark = f"FLWR_HOME={self.environment['FLWR_HOME']}".encode()
        ids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        return [process for process in ids if mark in _read(process, "environ").split(b"\0") and process != os.getpid()]

    def kill(self, name: str) -> None:
        """kill -9 of this process alone; what it started lives on, as after a real crash."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop_one(self, name: str, seconds: float = 10.0) -> None:
        """Stop a process and all that it started, also what leads a session of its own (Flower's SuperExec does)."""
        family = self._family(name)
        self._end(family, seconds, self.processes.pop(name))

    def stop(self) -> None:
        """Stop everything that was started, the nodes first, then what a killed process left behind."""
        for name in sorted(self.processes, key=lambda name: name == "superlink"):
            self.stop_one(name)
        self._end(self.left(), 2.0)

    def _end(self, processes: list[int], seconds: float, own: subprocess.Popen[bytes] | None = None) -> None:
        """SIGTERM, and SIGKILL to what is still there after these seconds; returns when all are gone."""
        for sent, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, seconds)):
            with suppress(ProcessLookupError):
                if own is not None:
                    os.killpg(own.pid, sent)  # it leads a session; this is all that there is without /proc
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
    """What /proc says of a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{process}/{what}").read_bytes()
    except OSError:
        return b""
