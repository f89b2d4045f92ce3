"""A node that runs this package's ClientApp and nothing else.

With Flower, the code of a node comes from the person who starts the run, so a policy that is checked in that code would bind
nobody. A SuperNode finds the program `flwr-clientapp` by its PATH. `guarded` puts a folder in front of it. Its
`flwr-clientapp` is Flower's own, but loads the installed ClientApp of this package, and does not even unpack the app that was
sent. The other kinds of task that Flower knows are refused. `flower-superexec`, which starts a process for every message, is
Flower's own too, but these processes start quickly (`processes/warm.py`).
"""

import os
import sys
import threading
import time
from pathlib import Path

from platformdirs import user_cache_path

from fedpdm.errors import UserError

__all__ = ["clientapp", "end_with_parent", "guarded", "main"]

_SUPEREXEC = "flower-superexec"
_PROGRAMS = (_SUPEREXEC, "flwr-clientapp", "flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")


def guarded(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment for a SuperNode that runs only this package's ClientApp.

    Parameters
    ----------
    environment : dict of str to str
        The present environment.

    Returns
    -------
    dict of str to str
        The environment with another PATH.
    """
    folder = user_cache_path("fedpdm") / "programs" / Path(sys.prefix).as_posix().strip("/").replace("/", "-")
    text = f"#!{sys.executable}\nfrom fedpdm.engines.flower.processes.guard import main\n\nmain()\n"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in _PROGRAMS:
            if not (folder / name).is_file() or (folder / name).read_text() != text:
                own = folder / f".{name}.{os.getpid()}"  # several nodes may start at the same time
                own.write_text(text)
                own.chmod(0o700)
                own.replace(folder / name)
    except OSError as error:
        raise UserError(
            f"The folder {folder} cannot be written: {error.strerror}. Set XDG_CACHE_HOME to another place."
        ) from None
    return environment | {"PATH": f"{folder}{os.pathsep}{environment.get('PATH', '')}"}


def end_with_parent(seconds: float = 20.0, every: float = 1.0) -> None:
    """End this process some seconds after its parent has ended.

    Flower asks such an orphan to leave by a signal, which a main thread that waits within a library does not see. An end at any
    moment loses nothing: the state on disk is the same as after a kill -9, and nobody would take the reply.

    Parameters
    ----------
    seconds, every : float
        The delay, and the time between two checks.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every)
        time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="fedpdm-parent").start()


def main() -> None:
    """Stand in for the programs that a SuperNode starts."""
    name = Path(sys.argv[0]).name
    if name == _SUPEREXEC:
        from fedpdm.engines.flower.processes.warm import superexec

        superexec(clientapp)
    elif name == "flwr-clientapp":
        clientapp()
    else:
        print(f"fedpdm: this node runs only the ClientApp of fedpdm, not {name}.", file=sys.stderr)
        sys.exit(1)


def clientapp() -> None:
    """Answer one message: Flower's own `flwr-clientapp`, with the installed ClientApp of this package."""
    end_with_parent()
    from flwr.supernode.cli import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    from fedpdm.engines.flower.client.app import app

    for replaced in ("install_from_fab", "get_load_client_app_fn"):
        if not callable(getattr(run_clientapp, replaced, None)):  # otherwise the node would run the server's app
            sys.exit(f"fedpdm: this release of Flower has no {replaced}: install flwr>=1.41,<1.43.")
    run_clientapp.install_from_fab = lambda *_, **__: None  # type: ignore[assignment]
    run_clientapp.get_load_client_app_fn = lambda **_: lambda *_: app  # type: ignore[assignment]
    flwr_clientapp()
