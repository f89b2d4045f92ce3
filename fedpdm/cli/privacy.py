"""The commands `fedpdm privacy ...`: plan a budget, show the spending, attack the mechanism."""

import itertools
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpdm.choices.words import RELATIONS
from fedpdm.cli.live_audit import audit_live, canaries
from fedpdm.cli.options import SetOption
from fedpdm.cli.small_audit import attack_small, small_cases
from fedpdm.errors import ConfigError, require_extra

__all__ = ["privacy_app"]

privacy_app = typer.Typer(no_args_is_help=True, help="Plan, meter and audit privacy.")

privacy_app.command("canaries")(canaries)


@privacy_app.command("plan")
def plan(
    epsilon: Annotated[float | None, typer.Option(help="Total budget of one client.")] = None,
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-5,
    participations: Annotated[int | None, typer.Option(help="Rounds that one client takes part in.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise over add/remove sensitivity.")] = None,
    examples: Annotated[int, typer.Option(help="Public number n of the client's examples.")] = 600,
    clip: Annotated[float, typer.Option(help="Bound C on one example's gradient.")] = 0.5,
    rho: Annotated[float, typer.Option(help="Weight of the proximal term.")] = 0.01,
    step_size: Annotated[float, typer.Option(help="Local step size.")] = 3.0,
    steps: Annotated[int, typer.Option(help="Local steps Q.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Batch size of the one-pass mode and of the paper.")] = 10,
    smoothness: Annotated[float, typer.Option(help="Smoothness L of the loss: R^2/4 logistic, R^2/2 softmax.")] = 0.5,
    beta: Annotated[float, typer.Option(help="Weight of the non-convex term.")] = 0.0,
    tolerance: Annotated[float, typer.Option(help="Squared gradient norm at which the certified mode stops.")] = 1e-6,
    rows: Annotated[
        int | None, typer.Option(help="Of a table: rows of all clients. Shows the settings of the rule for tables.")
    ] = None,
    clients: Annotated[int, typer.Option(help="Of a table: clients of equal size.")] = 10,
    features: Annotated[int, typer.Option(help="Of a table: numbers, levels of words, and 1.")] = 20,
    rarest: Annotated[float | None, typer.Option(help="With --rows: share of the rarest class, as far as it is known.")] = None,
    cohort: Annotated[int, typer.Option(help="Members that share the noise of a secure sum; 0: none.")] = 0,
    colluding: Annotated[int | None, typer.Option(help="Members that may work with the server (default: a tenth).")] = None,
    dropouts: Annotated[int | None, typer.Option(help="Members that may be missing in a sum (default: a tenth).")] = None,
    dimension: Annotated[int, typer.Option(help="Coordinates of the model, for a cohort's lattice.")] = 7850,
    unit: Annotated[
        str, typer.Option(help="example; or client: all of one, with --cohort, and --clip for a mean gradient.")
    ] = "example",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute the noise for a budget, per mode and neighbouring relation. Give two of epsilon, noise and participations.

    \b
    Example:
      fedpdm privacy plan --epsilon 1 --participations 9 --examples 600
      fedpdm privacy plan --epsilon 1 --rows 5000 --clients 20 --features 30
      fedpdm privacy plan --epsilon 1 --participations 60 --cohort 30
    """
    from fedpdm.algorithms.local import LocalPlan
    from fedpdm.privacy.plan import MODES, plan_table
    from fedpdm.privacy.sensitivity import Curvature
    from fedpdm.privacy.shared_noise import cohort_figures
    from fedpdm.privacy.sums import make_cohort

    if rows is not None:
        _plan_for_table(epsilon, delta, (rows, clients, features), rarest, as_json)
        return
    if [epsilon, noise_multiplier, participations].count(None) != 1:
        raise ConfigError("Give two of --epsilon, --noise-multiplier and --participations: the third is computed.")
    local = LocalPlan(steps, batch_size, step_size, tolerance=tolerance)
    if unit not in ("example", "client") or (unit == "client" and not cohort):
        raise ConfigError(f"Expected --unit {unit} to be example, or client with --cohort, for instance 1000.")
    curvature, modes = Curvature(rho, smoothness, beta), MODES if unit == "example" else ("client",)
    result = plan_table(epsilon, delta, participations, noise_multiplier, examples, clip, curvature, local, modes)
    if cohort:
        result["cohort"] = cohort_figures(result["modes"], make_cohort(cohort, colluding, dropouts), dimension, delta)
    elif colluding is not None or dropouts is not None:
        raise ConfigError("--colluding and --dropouts are for a cohort: give --cohort, for instance 30.")
    if as_json:
        print(json.dumps(result, indent=2))
        return
    _print_modes(result["modes"], delta, steps)
    if cohort:
        _print_cohort(result["cohort"])
    print(result["paper"]["sentence"] if unit == "example" else "The unit is all of one client: its contribution is cut.")


def _print_modes(modes: dict[str, Any], delta: float, steps: int) -> None:
    """A line per mode and relation."""
    print(f"{'mode':14}{'relation':13}{'epsilon':>9}{'times':>7}{'noise/sens.':>13}{'sensitivity':>13}{'sigma':>11}")
    for mode, by_relation in modes.items():
        if "error" in by_relation:
            print(f"{mode:14}{by_relation['error']}")
            continue
        for relation in RELATIONS:
            row = by_relation[relation]
            print(
                f"{mode:14}{relation:13}{row['epsilon']:9.4g}{row['participations']:7d}"
                f"{row['noise_multiplier']:13.4g}{row['sensitivity']:13.4g}{row['sigma']:11.4g}"
            )
    print(
        f"delta = {delta:g}; times: participations; sensitivity: add/remove. The noise multiplier (noise/sens.) is per "
        f"release: one per participation, or {steps} in mode every-step."
    )


def _print_cohort(found: dict[str, Any]) -> None:
    """Print both figures side by side, for either reading of the budget."""
    names = f"{'epsilon, sums':>14}{'own share alone':>17}{'share/sens.':>13}"
    print(f"{'cohort':14}{'relation':13}{'budget for':25}{names}")
    for row in found["figures"]:
        print(
            f"{found['members']:<14d}{row['relation']:13}{row['budget']:25}{row['sum_epsilon']:14.4g}{row['own_epsilon']:17.4g}"
            f"{row['share_multiplier']:13.4g}"
        )
    print(found["sentence"])


def _plan_for_table(epsilon: float | None, delta: float, of: tuple[int, int, int], rarest: float | None, as_json: bool) -> None:
    """What the rule of docs/defaults.md makes of these sizes (rows, clients, features), and whether the budget suffices."""
    import numpy as np

    from fedpdm.setup.defaults import Sizes, rule, signal, verdict

    rows, clients, features = of
    if rarest is not None and not 0 < rarest <= 0.5:
        raise ConfigError(f"Expected --rarest {rarest:g}, the share of the rarest class, above 0 and at most 0.5.")
    if epsilon is None or not epsilon > 0 or not 0 < clients <= rows or features < 1 or not 0 < delta < 1:
        raise ConfigError(
            f"Expected --epsilon above 0 (not {epsilon}), --delta in (0, 1) (not {delta:g}), at least one row per client "
            f"({rows} rows, {clients} clients) and one feature (not {features})."
        )
    sizes = Sizes(np.full(clients, rows / clients), features)
    found, said = signal(sizes, epsilon, delta), verdict(sizes, epsilon, delta, rarest=rarest)
    settings = {f"{section}.{key}": value for section, values in rule(found).items() for key, value in values.items()}
    if as_json:
        print(json.dumps({"signal": found, "settings": settings, "warning": said}, indent=2))
        return
    print(f"signal {found:.3g} (docs/defaults.md)")
    for key, value in settings.items():
        print(f"{key} = {value:.4g}" if isinstance(value, float) else f"{key} = {value}")
    print(said or "The budget is large enough for these sizes.")


@privacy_app.command("spent")
def spent(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the spending and the rest of every client of a run: from its ledger, or for a deployment an upper bound."""
    from fedpdm.runs.spent import read_accounts

    source, accounts = read_accounts(run)
    worst = max(accounts, key=lambda a: a["epsilon_spent"])
    if as_json:
        print(json.dumps({"source": source, "clients": accounts, "worst": worst}, indent=2))
        return
    if source == "asked":
        print("A deployment: upper bounds from the server's requests. Each client's own ledger has its actual spending.")
    width = max(14, *(len(str(account["name"])) + 2 for account in accounts))
    # of a deployment only rounds are listed by client; its figures hold the other releases of the job too
    counted = "releases" if source == "ledger" else "rounds"
    print(f"{'client':{width}}{counted:>9}{'epsilon spent':>15}{'left':>9}")
    for account in accounts:
        left = account["epsilon_left"]
        print(f"{account['name']:{width}}{account['releases']:9d}{account['epsilon_spent']:15.4g}{left:9.3f}")
    print(
        f"Worst: {worst['name']} with epsilon = {worst['epsilon_spent']:.4g} of {worst['epsilon']:g} "
        f"(delta = {worst['delta']:g}, {worst['relation']} of {worst['unit']})."
    )
    if more := worst["schema_epsilon"]:
        print(f"The schema cost epsilon = {more:g} before that: {worst['epsilon_spent'] + more:.4g} in all.")


@privacy_app.command("audit")
def audit(
    config: Annotated[
        str | None, typer.Argument(help="A TOML file, or a preset, to attack (default: a small case for the attack).")
    ] = None,
    settings: SetOption = None,
    mechanism: Annotated[str | None, typer.Option(help='"paper" or "sound" (default: that of CONFIG, else sound).')] = None,
    epsilon: Annotated[float | None, typer.Option(help="The claim to attack, of a small case.")] = None,
    loss: Annotated[str | None, typer.Option(help="Of a small case: problem.loss (softmax), or all of them.")] = None,
    mode: Annotated[str | None, typer.Option(help="Of a small case: privacy.mode (contractive), or all of them.")] = None,
    target: Annotated[str, typer.Option(help="simulation; client: the code of a real node; live: a real job.")] = "simulation",
    attack: Annotated[str, typer.Option(help="dual, steps, support, canary, all of these, or one-run.")] = "all",
    runs: Annotated[int, typer.Option(help="Runs with, and without, the canary.")] = 20_000,
    canaries: Annotated[int, typer.Option(min=2, help="Canaries of the attack one-run.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the audit.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the result and its plots.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data files.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Of a live job: the node's state-dir.")] = None,
    coins: Annotated[Path | None, typer.Option(help="Of a live job: the coins (fedpdm privacy canaries).")] = None,
    job: Annotated[str | None, typer.Option(help="Of a live job: its digest; not needed if it is the only one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Attack the functions that training runs, and compare the result with the claim. Exit code 1: a breach was found.

    \b
    Example:
      fedpdm privacy audit --mechanism paper --attack dual
      fedpdm privacy audit --attack canary --loss poisson --mode all
      fedpdm privacy audit --target client
      fedpdm privacy audit --target live --state-dir /var/lib/fedpdm --coins coins.json
    """
    if target == "live":
        audit_live(state_dir, coins, job, as_json)
        return
    if target == "client":
        _audit_node(attack, epsilon, canaries, seed, as_json, {"CONFIG": config, "--set": settings, "--mechanism": mechanism})
        return
    if target != "simulation":
        raise ConfigError(f"Unknown --target {target!r}: choose simulation, client or live.")
    from fedpdm.audit import audit as auditing
    from fedpdm.audit.drawing import plot
    from fedpdm.audit.verdict import to_json
    from fedpdm.config import load_config

    if mechanism not in (None, "paper", "sound"):
        raise ConfigError(f"Unknown --mechanism {mechanism!r}: choose paper or sound.")
    if config is None and settings:
        raise ConfigError("--set changes the settings of a CONFIG: give one, for instance demo.")
    if config is not None and (epsilon is not None or loss or mode):
        raise ConfigError(
            "--epsilon, --loss and --mode are for the small case: with a CONFIG use --set privacy.epsilon=VALUE, "
            "problem.loss=NAME or privacy.mode=NAME."
        )
    if out:
        require_extra("matplotlib", "figures", "An audit with --out")
    cases = small_cases(mechanism or "sound", loss, mode) if config is None else [{}]
    results: list[Any] = []
    documents: list[dict[str, Any]] = []
    for case, name in itertools.product(cases, auditing.ATTACKS if attack == "all" else (attack,)):
        if config is None:
            small = auditing.small_config(mechanism or "sound", name, epsilon, **case)
            result = attack_small(small, name, runs, canaries, seed)
        else:
            chosen = [*(settings or ()), *([f"privacy.mechanism={mechanism}"] if mechanism else [])]
            result = auditing.audit_config(load_config(config, chosen), name, runs, seed, data_dir, canaries)
        results.append(result)
        documents.append(case | to_json(result))
        if not as_json:
            print(f"{', '.join(case.values())}: {result.sentence}" if case else result.sentence, flush=True)
        if out:
            out.mkdir(parents=True, exist_ok=True)
            plot(result, out / "-".join(["audit", result.mechanism, *case.values(), f"{name}.png"]))
    if out:
        (out / f"audit-{results[0].mechanism}.json").write_text(json.dumps(documents, indent=2) + "\n")
    if as_json:
        print(json.dumps(documents, indent=2))
    if any(result.breached and result.mechanism == "sound" for result in results):
        raise typer.Exit(1)


def _audit_node(attack: str, epsilon: float | None, canaries: int, seed: int, as_json: bool, others: dict[str, Any]) -> None:
    """Attack a node with made-up rows, in a folder that is removed afterwards."""
    require_extra("flwr", "flower", "An audit of a client")
    from fedpdm.audit import node
    from fedpdm.audit.verdict import AuditResult, to_json

    if given := [name for name, value in others.items() if value]:
        raise ConfigError(f"--target client attacks made-up rows: remove {', '.join(given)}.")
    attacks: dict[str, Any] = {
        "messages": lambda: node.attack_messages(epsilon or 4.0, canaries=canaries, seed=seed),
        "replies": lambda: node.attack_replies(seed),
        "time": lambda: node.attack_time(seed=seed),
        "schema": lambda: node.attack_schema(epsilon or 1.0),
    }
    if attack not in ("all", *attacks):
        raise ConfigError(f"Unknown attack {attack!r} on a client: choose one of {', '.join(attacks)}, or all.")
    results = []
    for name in attacks if attack == "all" else (attack,):
        results.append(attacks[name]())
        if not as_json:
            print(results[-1].sentence, flush=True)
    if as_json:
        print(json.dumps([to_json(r) if isinstance(r, AuditResult) else r._asdict() for r in results], indent=2))
    if any(result.breached for result in results):
        raise typer.Exit(1)
