"""The commands `fedpdm flower ...`: make and approve jobs, a federation of real processes, a look into a client's folder."""

import json
import os
import signal
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpdm.cli.flower_budget import budget_app
from fedpdm.cli.interrupt import interrupted
from fedpdm.cli.options import SetOption
from fedpdm.errors import ConfigError, UserError, require_extra

__all__ = ["flower_app"]

flower_app = typer.Typer(no_args_is_help=True, help="Train across machines, on Flower (pip install 'fedpdm[flower]').")
flower_app.add_typer(budget_app, name="budget")


@flower_app.command("demo")
def demo(
    nodes: Annotated[int, typer.Option(min=1, max=64, help="SuperNodes, one client each.")] = 4,
    data: Annotated[str, typer.Option(help="digits, mnist, or stays: a number, in a table at every client.")] = "digits",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 5,
    epsilon: Annotated[
        float, typer.Option(help="Every client's budget for training; stays: a tenth of it again to evaluate.")
    ] = 1.0,
    cohort: Annotated[int, typer.Option(min=0, max=64, help="Secure sums of so many SuperNodes instead; 0: none.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the run, the nodes' states, keys and logs.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Start a SuperLink and SuperNodes on loopback, with TLS and authentication; train; stop everything.

    With --cohort, nodes are members of secure sums: on digits, with one member killed (-9) in every step of the protocol.

    Example:  fedpdm flower demo --nodes 4 --out runs/federation
    """
    _require_flower()
    from fedpdm.engines.flower.processes.demo_data import DEMO_DATA, TABLES

    if data not in (*DEMO_DATA, TABLES):
        raise ConfigError(f"Unknown --data {data!r}: choose one of {', '.join((*DEMO_DATA, TABLES))}.")
    folder = out or Path("runs") / f"flower-{datetime.now():%Y%m%d-%H%M%S}"
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: choose another --out.")
    _say("Loading fedpdm and Flower.")
    from fedpdm.engines.flower.cohort.demo import run_cohort_demo
    from fedpdm.engines.flower.processes.demo import run_demo
    from fedpdm.engines.flower.processes.launch import Stopped

    try:
        common: dict[str, Any] = {"epsilon": epsilon, "data_dir": data_dir, "say": _say}
        if cohort:
            summary = run_cohort_demo(folder, members=cohort, **common)
        else:
            summary = run_demo(folder, nodes=nodes, data=data, rounds=rounds, **common)
    except KeyboardInterrupt as stop:
        number = stop.args[0] if isinstance(stop, Stopped) else signal.SIGINT
        interrupted("interrupted; everything that was started has been stopped.", 128 + number)
    if as_json:
        print(json.dumps(summary | {"folder": str(folder / "run")}, indent=2))
        return
    ended = f"after {summary['rounds']} rounds in {summary['seconds']:.0f} s."
    print(f"Test accuracy {summary['test_accuracy']:.4f} {ended}" if data in DEMO_DATA else f"A number was learnt {ended}")
    if data not in DEMO_DATA:
        from fedpdm.metrics.words import metric_lines

        found = summary.get("metrics_averaged") or summary.get("metrics")
        print("\n".join(metric_lines(found, "rows that clients hold out")))
    print(summary["guarantee"])
    print(f"Run folder: {folder / 'run'}; a client's own record: fedpdm flower status {folder / 'nodes' / 'client-0'}")


def _say(line: str) -> None:
    """Show what happens, beside the results."""
    print(line, file=sys.stderr, flush=True)


@flower_app.command("identity")
def identity(state_dir: Annotated[Path, typer.Argument(help="The node's state-dir.")]) -> None:
    """Print the public key by which this client is on the rosters of secure sums; the key is made the first time.

    The other members list it in their policies, under [cohort].

    Example:  fedpdm flower identity /var/lib/fedpdm
    """
    _require_flower()
    from fedpdm.engines.flower.client.identity import public_key
    from fedpdm.engines.flower.client.store import open_store

    with open_store(state_dir):
        print(public_key(state_dir))


@flower_app.command("init")
def init(
    job: Annotated[Path, typer.Argument(help="New folder for the job, a policy, the schema and the Flower app.")],
    source: Annotated[str, typer.Option("--from", help="A run's folder, a preset, or a TOML file of settings.")] = "demo",
    settings: SetOption = None,
    slots: Annotated[
        str | None, typer.Option(help="Public number of places for rows (or persons): one for all clients, or 500,80,1200.")
    ] = None,
    unit_rows: Annotated[int | None, typer.Option(min=1, help="Most rows of one person, with a unit column.")] = None,
    schema: Annotated[Path | None, typer.Option(help="Public schema of your table; a run's folder has it.")] = None,
    columns: Annotated[int | None, typer.Option(min=1, help="NPZ files without a schema: columns of `features`.")] = None,
    classes: Annotated[str | None, typer.Option(help="NPZ files without a schema: names of label 0, 1, ...: no,yes")] = None,
    noise: Annotated[str, typer.Option(help="secure; simulation is for public data and protects nothing.")] = "secure",
    evaluate: Annotated[float | None, typer.Option(help="Epsilon for noised counts on held-out rows.")] = None,
    evaluate_every: Annotated[int, typer.Option(min=0, help="Rounds between two evaluations; 0: one at the end.")] = 0,
    evaluate_share: Annotated[float, typer.Option(help="Share of every client's rows that is held out.")] = 0.2,
    out: Annotated[str, typer.Option(help="Run folder on the server.")] = "",
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the files of known data sets.")] = None,
) -> None:
    """Write the files that server and clients need for one training: job.toml, policy.toml, schema.toml and app/.

    \b
    Example:
      fedpdm flower init jobs/patients --from runs/patients --slots 500
    """
    _require_flower()
    from fedpdm.engines.flower.client.approve import explain
    from fedpdm.engines.flower.init import Arrays, job_from, write_job
    from fedpdm.engines.flower.job import Evaluation
    from fedpdm.setup.cohorts import cohorts_in_a_round

    if job.exists() and any(job.iterdir()):
        raise UserError(f"{job} is not empty: choose another folder.")
    if evaluate is not None and not (evaluate > 0 and 0 < evaluate_share < 1):
        raise ConfigError(f"Expected --evaluate {evaluate:g} above 0 and --evaluate-share {evaluate_share:g} between 0 and 1.")
    wanted = None if evaluate is None else Evaluation(share=evaluate_share, every=evaluate_every, epsilon=evaluate)
    if (columns is None) != (classes is None):
        raise ConfigError("--columns and --classes go together: they describe NPZ files of features and labels.")
    arrays = Arrays(classes.split(","), [f"x{j}" for j in range(columns)]) if classes and columns else None
    how: dict[str, Any] = {"slots": _whole_numbers(slots) if slots else None, "unit_rows": unit_rows}
    how |= {"schema": schema, "arrays": arrays, "noise": noise, "evaluation": wanted}
    made = job_from(source, settings or [], **how, data_dir=data_dir)
    explained = explain(made)  # refuse a job that cannot be deployed before anything is written
    path = write_job(job, made, out=out or str(job.absolute() / "run"), data_dir=data_dir)
    print("\n".join(explained))
    needed = "--state-dir DIR --policy FILE" + (" --data-path ROWS" if made.table is not None or arrays else "")
    fixed = made.config.privacy.trust == "cohorts" and made.config.cohorts.members == "fixed"
    needed += " --client K" if made.client_slots or (fixed and cohorts_in_a_round(made.config) > 1) else ""
    print(f"Every client: fedpdm flower approve {path} {needed}; start from {job / 'policy.toml'}.")
    print(f"The server: flwr run {job / 'app'} CONNECTION")


def _whole_numbers(text: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise ConfigError(f"Expected --slots {text} to be a number above 0, or one for each client: --slots 500,80,1200.")
    return numbers


@flower_app.command("approve")
def approve(
    job: Annotated[Path, typer.Argument(help="The job's file, job.toml.")],
    state_dir: Annotated[Path, typer.Option(help="The node's state-dir.")],
    policy: Annotated[Path, typer.Option(help="The node's policy.")],
    data_path: Annotated[Path | None, typer.Option(help="The node's data: checked to fit the job.")] = None,
    schema: Annotated[Path | None, typer.Option(help="The node's schema: must be the job's.")] = None,
    client: Annotated[
        int | None, typer.Option(min=0, help="The node's client number, where clients have different slots or cohorts.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Explain in plain words what a job asks of this client, and let the client take part in it.

    \b
    Example:
      fedpdm flower approve job.toml --state-dir /var/lib/fedpdm --policy /etc/fedpdm/policy.toml
    """
    _require_flower()
    from fedpdm.engines.flower.client.approve import approve as store
    from fedpdm.engines.flower.client.approve import explain
    from fedpdm.engines.flower.client.node_data import NodeSource
    from fedpdm.engines.flower.client.policy import load_policy
    from fedpdm.engines.flower.job import read_job

    wanted, terms = read_job(job), load_policy(policy)
    if data_path and wanted.client_slots and client is None:
        raise ConfigError(
            f"The job's clients have different slots: say with --client which one this is, from 0 to "
            f"{len(wanted.client_slots) - 1}."
        )
    print("\n".join(explain(wanted, client)))
    if not yes:
        typer.confirm("Take part in it?", abort=True)
    path = store(state_dir, wanted, terms, NodeSource(client or 0, data_path, schema, None) if data_path else None)
    print(f"Approved: {path}")


@flower_app.command("remove")
def remove(
    job: Annotated[str, typer.Argument(help="The job's digest, or its beginning.")],
    state_dir: Annotated[Path, typer.Option(help="The node's state-dir.")],
) -> None:
    """Stop taking part in a job: the client answers no further request for it.

    The spending for the job stays in the ledger, and its messages stay on record. `approve` takes it up again.

    \b
    Example:
      fedpdm flower remove 39ed7796ee5e --state-dir /var/lib/fedpdm
    """
    _require_flower()
    from fedpdm.engines.flower.client.held_jobs import remove as remove_job
    from fedpdm.engines.flower.client.store import open_store

    with open_store(state_dir, create=False):
        digest = remove_job(state_dir, job)
    print(f"Removed: job {digest}. Its spending stays in the ledger.")


@flower_app.command("node", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def node(context: typer.Context) -> None:
    """Start a SuperNode that runs fedpdm's ClientApp only, and no app from the server. Options: those of `flower-supernode`.

    The node checks its data first: if they do not fit an approved job, it does not start.

    Example:  fedpdm flower node --superlink HOST:PORT --root-certificates ca.crt --auth-supernode-private-key node.key
    --node-config "client=0 state-dir='/var/lib/fedpdm' policy='/etc/fedpdm/policy.toml'"
    """
    _require_flower()
    from fedpdm.engines.flower.processes.guard import guarded
    from fedpdm.engines.flower.processes.launch import QUIET

    _check_node(context.args)
    program = Path(sys.executable).parent / "flower-supernode"
    os.execve(program, [str(program), *context.args], guarded(dict(os.environ) | QUIET))


def _check_node(arguments: list[str]) -> None:
    """Refuse data that do not fit the jobs that the client holds, before anybody can ask."""
    from flwr.common.config import parse_config_args

    from fedpdm.engines.flower.client.app import node_of
    from fedpdm.engines.flower.client.approve import check_fit
    from fedpdm.engines.flower.client.held_jobs import held_digests, held_job
    from fedpdm.engines.flower.client.policy import load_policy
    from fedpdm.engines.flower.client.store import open_store

    texts = [arguments[place + 1] for place, word in enumerate(arguments[:-1]) if word == "--node-config"]
    texts += [word.partition("=")[2] for word in arguments if word.startswith("--node-config=")]
    if not texts:
        return
    own = node_of(dict(parse_config_args(texts[:1])))
    load_policy(own.policy)
    with open_store(own.state_dir):
        for digest in held_digests(own.state_dir):
            if job := held_job(own.state_dir, digest):
                check_fit(own.source, job, own.state_dir)


@flower_app.command("keys")
def keys(
    folder: Annotated[Path, typer.Argument(help="Folder for the files.")],
    host: Annotated[list[str] | None, typer.Option(help="Name or address of the SuperLink; may be repeated.")] = None,
    nodes: Annotated[int, typer.Option(min=0, help="Number of nodes that get a key.")] = 0,
) -> None:
    """Make a certificate authority, the SuperLink's certificate, and keys for nodes.

    Example:  fedpdm flower keys keys --host superlink.example.org --nodes 4
    """
    _require_flower()
    from fedpdm.engines.flower.processes.keys import make_certificates, make_node_key

    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: choose another folder, so that keys in use do not change.")
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
    """Show a client's spending, the rest of its budget, its jobs, its last message, and its refusals."""
    _require_flower()
    from fedpdm.engines.flower.processes.status import client_status

    report = client_status(state_dir)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    budget = report["budget"]
    if report["trouble"]:
        print(f"Budget: nothing is left. {report['trouble']}")
    elif budget is None:
        print("Nothing was spent: no server has asked this client under the sound mechanism.")
    else:
        print(
            f"Budget: epsilon = {budget['epsilon_spent']:.4g} of {budget['epsilon']:g} spent in {budget['releases']} releases, "
            f"{budget['epsilon_left']:.4g} left (delta = {budget['delta']:g}, {budget['relation']} of one example, "
            "or of all rows of one unit in a job with a unit column)."
        )
    for word in report["words"]:
        print(f"Accepted {_when(word['at'])}: {word['reason']}")
    _print_history(report)


def _print_history(report: dict[str, Any]) -> None:
    for job in report["jobs"]:
        most = "" if job["epsilon_most"] is None else f" of at most {job['epsilon_most']:.4g}"
        held = job["algorithm"] or ("approved" if job["approved"] else "not held here")
        last = "" if job["last_round"] is None else f"; last in round {job['last_round'] + 1}"
        spent = "nobody knows what was" if job["epsilon_spent"] is None else f"epsilon = {job['epsilon_spent']:.4g}{most}"
        print(
            f"Job {job['job']} ({held}): {spent} spent, {job['messages']} messages, "
            f"{job['accepted']} of them known to be used, {job['evaluations']} evaluations{last}."
        )
        if beyond := job["rows_beyond_slots"]:
            print(f"  The data have {beyond} rows beyond this job's slots, which are not used: leave rows out.")
    if last := report["last_message"]:
        where = f"round {last['round'] + 1} of job {last['job']}"
        print(f"Last message: {where}, {last['size']} bytes, {last['status']}, {_when(last['made'])}.")
    print("Today: " + ", ".join(f"{count} {what}" for what, count in report["today"].items()) + ".")
    for refusal in report["refusals"][-5:]:
        where = "introduction" if refusal["round"] < 0 else f"round {refusal['round'] + 1}"
        print(f"Refused {_when(refusal['at'])}, {where}: {refusal['name']}: {refusal['reason']}")


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _require_flower() -> None:
    require_extra("flwr", "flower", "A federation across machines")
