"""The ClientApp: Flower's side of `fedpdm.engines.flower.client.client`. A new process runs it for every message."""

import os
import time
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
    """A node from its own configuration (`flower-supernode --node-config`).

    Keys: `client` (its number, from 0), `state-dir`, `policy`; for own data `data-path` and, if that is a table, `schema`;
    `data-dir` says where the files of known data sets are. Flower's simulation gives its nodes a `partition-id` alone: there
    the folder in the environment variable FEDPDM_NODES holds `policy.toml` and a state folder per client.
    """
    from fedpdm.engines.flower.client.client import Node
    from fedpdm.engines.flower.client.node_data import NodeSource

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
    files = (Path(settings[key]) if key in settings else None for key in ("data-path", "schema", "data-dir"))
    return Node(NodeSource(settings["client"], *files), Path(settings["state-dir"]), Path(settings["policy"]))


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Say who this is."""
    began = time.monotonic()
    try:
        meeting, node = unpack(Meeting, message.content), node_of(dict(context.node_config))
        from fedpdm.engines.flower.client import client

        said = client.introduce(node, meeting)
        hold(began, node.policy)
    except Exception as error:  # Flower would send its text to the server
        said = Introduction(-1, *_refusal(error))
    return Message(pack(said), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round."""
    return _work(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Noised counts on the rows that are held out."""
    return _work(message, context)


def _work(message: Message, context: Context) -> Message:
    began = time.monotonic()
    try:
        request, node = unpack(Request, message.content), node_of(dict(context.node_config))
        from fedpdm.engines.flower.client import client
        from fedpdm.engines.flower.compile_cache import use_compile_cache

        use_compile_cache(node.state_dir)
        reply = client.answer(node, request)
        hold(began, node.policy)
    except Exception as error:  # Flower would send its text to the server
        name, reason = _refusal(error)
        reply = Reply("", -1, -1, refused=name, reason=reason)
    return Message(pack(reply), reply_to=message)


def _refusal(error: Exception) -> tuple[str, str]:
    """Code and constant text. What cannot even be read is not looked into, so that a refusal of it is quick."""
    if isinstance(error, Refused):
        return error.name, REFUSALS[error.name]
    from fedpdm.engines.flower.client.client import for_the_server

    return for_the_server(error)
