"""The ClientApp: Flower's side of `fedpdm.engines.flower.client.client`. A new process runs it for every message."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpdm.engines.flower.client.pace import hold
from fedpdm.engines.flower.protocol import REFUSALS, Introduction, Meeting, Refused, Reply, Request, pack, unpack
from fedpdm.errors import ConfigError

__all__ = ["app", "node_of"]

NODES_VARIABLE = "FEDPDM_NODES"

app = ClientApp()


def node_of(settings: dict[str, Any]) -> Any:
    """Make a node from its own configuration (`flower-supernode --node-config`).

    Flower's simulation gives its nodes only a `partition-id`: there the folder in the environment variable FEDPDM_NODES holds
    `policy.toml` and a state folder per client.

    Parameters
    ----------
    settings : dict
        `client` (its number, from 0), `state-dir`, `policy`; for the client's own data `data-path` and, if that is a table,
        `schema`; `data-dir` is the folder of the files of known data sets.

    Returns
    -------
    Node
        The node.
    """
    from fedpdm.engines.flower.client.client import Node
    from fedpdm.engines.flower.client.node_data import NodeSource

    settings = _checked(settings)
    files = (Path(settings[key]) if key in settings else None for key in ("data-path", "schema", "data-dir"))
    return Node(NodeSource(settings["client"], *files), Path(settings["state-dir"]), Path(settings["policy"]))


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration, if it has everything that a node needs."""
    nodes = os.environ.get(NODES_VARIABLE)
    if "client" not in settings and "partition-id" in settings and nodes:
        number = settings["partition-id"]
        settings = {"client": number, "state-dir": f"{nodes}/client-{number}", "policy": f"{nodes}/policy.toml"}
    for key, kind in (("client", int), ("state-dir", str), ("policy", str)):
        if not isinstance(settings.get(key), kind):
            raise ConfigError(
                f"The node's configuration lacks {key!r}: start it with "
                "--node-config \"client=0 state-dir='/path/to/state' policy='/path/to/policy.toml'\"."
            )
    return settings


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Answer the server's introduction."""

    def meet(settings: dict[str, Any]) -> Introduction:
        meeting = unpack(Meeting, message.content)
        from fedpdm.engines.flower.client import client

        return client.introduce(node_of(settings), meeting)

    return _in_time(message, context, meet, lambda name, reason: Introduction(-1, name, reason))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer the request of one round."""
    return _work(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Answer with noised counts on the rows that are held out."""
    return _work(message, context)


def _work(message: Message, context: Context) -> Message:
    def work(settings: dict[str, Any]) -> Reply:
        request = unpack(Request, message.content)
        from fedpdm.engines.flower.client import client
        from fedpdm.engines.flower.compile_cache import use_compile_cache

        node = node_of(settings)
        use_compile_cache(node.state_dir)
        return client.answer(node, request)

    return _in_time(message, context, work, lambda name, reason: Reply("", -1, -1, refused=name, reason=reason))


def _in_time(message: Message, context: Context, make: Callable[[Any], Any], refuse: Callable[[str, str], Any]) -> Message:
    """Send the answer or the refusal at the time that the policy's `reply_after` allows."""
    began, settings = time.monotonic(), None
    try:
        settings = _checked(dict(context.node_config))
        said = make(settings)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # also a panic of compiled code: Flower would send its text to the server
        said = refuse(*_refusal(error))
    answer = Message(pack(said), reply_to=message)
    if settings is not None:  # without a configuration there is neither a policy nor data
        hold(began, Path(settings["policy"]))
    return answer


def _refusal(error: BaseException) -> tuple[str, str]:
    """Return code and constant text. A request that cannot be read is not examined further, so its refusal is quick."""
    if isinstance(error, Refused):
        return error.name, REFUSALS[error.name]
    from fedpdm.engines.flower.client.client import for_the_server

    return for_the_server(error)
