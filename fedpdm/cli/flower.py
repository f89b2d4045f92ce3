"""The commands `fedpdm flower ...`: a federation of real processes on this machine, and a look into a client's folder."""

import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpdm.cli.flower_budget import budget_app
from fedpdm.errors import ConfigError, UserError, require_extra

__all__ = ["flower_app"]

flower_app = typer.Typer(no_args_is_help=True, help="Train across machines, on Flower (pip install 'fedpdm[flower]').")
flower_app.add_typer(budget_app, name="budget")


@flower_app.command("demo")
def demo(
    nodes: Annotated[int, typer.Option(min=1, max=64, help="SuperNodes, one client each.")] = 4,
    data: Annotated[str, typer.Option(help="digits, or mnist.")] = "digits",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 5,
    epsilon: Annotated[float, typer.Option(help="Every client's budget.")] = 1.0,
    out: Annotated[Path | None, typer.Option(help="Folder for the run, the nodes' states, keys and logs.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Start a SuperLink and SuperNodes on loopback, with TLS and authentication; train; stop everything.

    Example:  fedpdm flower demo --nodes 4 --out runs/federation
    """
    _require_flower()
    from fedpdm.engines.flower.processes.demo import DEMO_DATA, run_demo

    if data not in DEMO_DATA:
        raise ConfigError(f"Unknown --data {data!r}: choose one of {', '.join(DEMO_DATA)}.")
    folder = out or Path("runs") / f"flower-{datetime.now():%Y%m%d-%H%M%S}"
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: name another --out.")
    try:
        summary = run_demo(folder, nodes=nodes, data=data, rounds=rounds, epsilon=epsilon, data_dir=data_dir)
    except KeyboardInterrupt:
        print("\nfedpdm: interrupted; everything that was started has been stopped.", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(summary | {"folder": str(folder / "run")}, indent=2))
        return
    print(f"Test accuracy {summary['test_accuracy']:.4f} after {summary['rounds']} rounds in {summary['seconds']:.0f} s.")
    print(summary["guarantee"])
    print(f"Run folder: {folder / 'run'}; a client's own books: fedpdm flower status {folder / 'nodes' / 'client-0'}")


@flower_app.command("node", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def node(context: typer.Context) -> None:
    """Start a SuperNode (all options are those of `flower-supernode`) that runs fedpdm's ClientApp, whatever app it is sent.

    Example:  fedpdm flower node --superlink HOST:PORT --root-certificates ca.crt --auth-supernode-private-key node.key
    --node-config "client=0 state-dir='/var/lib/fedpdm' policy='/etc/fedpdm/policy.toml'"
    """
    _require_flower()
    from fedpdm.engines.flower.processes.guard import guarded
    from fedpdm.engines.flower.processes.launch import QUIET

    program = Path(sys.executable).parent / "flower-supernode"
    os.execve(program, [str(program), *context.args], guarded(dict(os.environ) | QUIET))


@flower_app.command("keys")
def keys(
    folder: Annotated[Path, typer.Argument(help="Folder for the files.")],
    host: Annotated[list[str] | None, typer.Option(help="Name or address of the SuperLink; may be repeated.")] = None,
    nodes: Annotated[int, typer.Option(min=0, help="Make a key for each of so many nodes.")] = 0,
) -> None:
    """Make a certificate authority, the SuperLink's certificate, and keys for nodes.

    Example:  fedpdm flower keys keys --host superlink.example.org --nodes 4
    """
    _require_flower()
    from fedpdm.engines.flower.processes.keys import make_certificates, make_node_key

    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: name another folder, lest keys that are in use be replaced.")
    try:
        made = make_certificates(folder, tuple(host or ("localhost", "127.0.0.1")))
        pairs = [make_node_key(folder, f"node-{node}") for node in range(nodes)]
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be written: {error.strerror}.") from None
    print(f"For the SuperLink: --ssl-ca-certfile {made.authority} --ssl-certfile {made.certificate} --ssl-keyfile {made.key}")
    print(f"For every node: --root-certificates {made.authority}")
    for private, public in pairs:
        print(f"{private.name}: --auth-supernode-private-key {private}; register {public}")


@flower_app.command("status")
def status(
    state_dir: Annotated[Path, typer.Argument(help="The node's state-dir.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a client has spent and has left, where it took part, its last message, and what it refused."""
    _require_flower()
    from fedpdm.engines.flower.processes.status import client_status

    report = client_status(state_dir)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    budget = report["budget"]
    if report["trouble"]:
        print(f"Budget: none is left. {report['trouble']}")
    elif budget is None:
        print("Nothing was spent: this client has not been asked under the sound mechanism.")
    else:
        print(
            f"Budget: epsilon = {budget['epsilon_spent']:.4g} of {budget['epsilon']:g} spent in {budget['releases']} releases, "
            f"{budget['epsilon_left']:.4g} left (delta = {budget['delta']:g}, {budget['relation']} of one example)."
        )
    for word in report["words"]:
        print(f"Accepted {_when(word['at'])}: {word['reason']}")
    _print_history(report)


def _print_history(report: dict[str, Any]) -> None:
    for job in report["jobs"]:
        used = f"{job['accepted']} of them known to be used"
        print(f"Job {job['job']}: {job['messages']} messages, {used}; last in round {job['last_round'] + 1}.")
    if last := report["last_message"]:
        where = f"round {last['round'] + 1} of job {last['job']}"
        print(f"Last message: {where}, {last['size']} bytes, {last['status']}, {_when(last['made'])}.")
    for refusal in report["refusals"][-5:]:
        print(f"Refused {_when(refusal['at'])}, round {refusal['round'] + 1}: {refusal['name']}: {refusal['reason']}")


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _require_flower() -> None:
    require_extra("flwr", "flower", "A federation across machines")
