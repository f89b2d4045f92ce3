"""The commands `fedpdm compare` and `fedpdm reproduce`: several runs side by side, or the figures of the paper."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedpdm.cli.completion import complete_algorithms
from fedpdm.cli.interrupt import when_interrupted
from fedpdm.cli.options import ConfigArgument, SetOption
from fedpdm.errors import ConfigError

__all__ = ["compare_command", "reproduce_command"]

SEEDS, QUICK_SEEDS = 5, 2
MOST_SEEDS = 160
RESUMABLE = "interrupted. Finished runs are stored: the same command continues from there."

OnOption = Annotated[
    str | None, typer.Option("--on", help="Run on the workers of a Dask cluster: the address of its scheduler (default: here).")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress.")]


def compare_command(
    config: ConfigArgument,
    algorithms: Annotated[
        str, typer.Option(help="Names, with commas between them (default: all).", autocompletion=complete_algorithms)
    ] = "",
    seeds: Annotated[int, typer.Option(help="Seeds 0 to N-1 are run.")] = SEEDS,
    settings: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results (default: runs/compare-CONFIG).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    on: OnOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run the same settings with several algorithms: a table with intervals, and curves against rounds, bytes and epsilon.

    \b
    Examples:
      fedpdm compare demo --algorithms fedavg,fedpdm --seeds 3
      fedpdm compare demo --on tcp://10.0.0.1:8786
    """
    from fedpdm.runs.cluster import on_cluster
    from fedpdm.studies.compare import all_algorithms, compare, table_lines

    folder = out or Path("runs") / f"compare-{Path(config).stem}"
    names = [name.strip() for name in algorithms.split(",") if name.strip()] or all_algorithms()
    with when_interrupted(RESUMABLE), on_cluster(on):
        result = compare(config, names, seeds, folder, settings or (), show_progress=not quiet)
    if as_json:
        print(json.dumps(result.rows, indent=2))
        return
    print("\n".join(table_lines(result.rows)))
    print(f"compare.csv, compare.png and compare.svg are in {folder}.")


def reproduce_command(
    figure: Annotated[str, typer.Argument(help="fig2 to fig8, all, or a further study: certified, heterogeneity, readings.")],
    seeds: Annotated[int | None, typer.Option(help=f"Seeds (default: {SEEDS}; {QUICK_SEEDS} with --quick).")] = None,
    until_decided: Annotated[
        bool, typer.Option("--until-decided", help="Add seeds to undecided claims: a sequential test, wrong in at most 5 %.")
    ] = False,
    most_seeds: Annotated[
        int, typer.Option(help="--until-decided: the most seeds of a claim. A larger number later costs 2 % more error.")
    ] = MOST_SEEDS,
    minutes: Annotated[float | None, typer.Option(help="--until-decided: add no seeds after this time.", min=0)] = None,
    first: Annotated[int | None, typer.Option(help="readings: only the first N of the design (default: all).", min=1)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the rounds, fewer seeds and curves.")] = False,
    data: Annotated[str | None, typer.Option(help="fig2 to fig8: only the panels of adult or of mnist.")] = None,
    settings: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results (default: below runs/).")] = None,
    on: OnOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run the paper's figures again, and judge its claims; or one of three further studies.

    \b
    Examples:
      fedpdm reproduce fig4
      fedpdm reproduce all --quick
      fedpdm reproduce all --until-decided --minutes 60
      fedpdm reproduce fig7 --data adult --set rounds.initial_scale=1 --out runs/larger-start
      fedpdm reproduce heterogeneity
      fedpdm reproduce readings --seeds 1 --first 50
    """
    import math
    from functools import partial

    from fedpdm.runs.cluster import on_cluster
    from fedpdm.studies.paper.figures import Scale, chosen_figures
    from fedpdm.studies.paper.multiverse import run_readings
    from fedpdm.studies.paper.reproduce import STUDIES, reproduce
    from fedpdm.studies.sequential import Rule

    if figure not in STUDIES:
        chosen_figures(figure)
    if until_decided and (seeds is not None or figure in STUDIES):
        given = f"--seeds {seeds}" if seeds is not None else figure
        raise ConfigError(f"--until-decided does not work with {given}: it chooses the seeds of fig2 to fig8. Leave one out.")
    if minutes is not None and not until_decided:
        raise ConfigError(f"--minutes {minutes:g} works with --until-decided only: add it, or leave --minutes out.")
    if first is not None and figure != "readings":
        raise ConfigError(f"--first {first} does not work with {figure}: it chooses among the readings.")
    if figure in STUDIES and (data or settings):
        given = f"--data {data}" if data else "--set"
        raise ConfigError(f"{given} does not work with {figure}: it is for fig2 to fig8.")
    count = (QUICK_SEEDS if quick else SEEDS) if seeds is None else seeds
    if count < 1:
        raise ConfigError(f"Expected --seeds {count} to be at least 1; a verdict needs 2.")
    folder = out or Path("runs") / ("reproduction-quick" if quick else "reproduction")
    if quick:
        print(
            "Quick: a tenth of the rounds, some of the curves, no first round of all clients: it measures nothing.", flush=True
        )
    if figure in STUDIES:
        with when_interrupted(RESUMABLE), on_cluster(on):
            study = partial(run_readings, first=first) if first else STUDIES[figure]
            verdicts = study(folder, count, quick, not quiet)
        for v in verdicts:
            if "against" in v:
                print(f"{v['verdict']:15}{v['effect']:>10.4g}  {v['claim']} (best of the others: {v['against']})")
            else:
                decides = f" (decides most: {v['decides']})" if v["decides"] else ""
                print(f"{v['effect']:>5.0%} of {v['readings']} readings, two models each  {v['claim']}{decides}")
        print(f"{figure}.md, .csv, .json, .png and .svg are in {folder}.")
        return
    rule = Rule(count, most_seeds) if until_decided else None
    seeds_said = f"--until-decided --most-seeds {most_seeds}" if rule else f"--seeds {count}"
    scale = Scale(quick=quick, settings=tuple(settings or ()), data=data)
    given = [*([f"--data {data}"] if data else []), *(f"--set {setting}" for setting in scale.settings)]
    command = " ".join(["fedpdm reproduce", figure, seeds_said, *(["--quick"] if quick else []), *given])
    with when_interrupted(RESUMABLE), on_cluster(on):
        limit = math.inf if minutes is None else minutes
        result = reproduce(figure, folder, count, scale, command, not quiet, rule, limit)
    for claim in result.claims:
        print(f"{claim['id']:22}{claim['verdict']:15}{claim['effect']:>10.4g}  {claim['claim']}")
    if result.left_out:
        print(f"{len(result.left_out)} claims are left out, because their figures or some of their points were not run.")
    print(f"{result.cells} cells in {result.seconds:.0f} s. Figures, numbers, claims.md and claims.json are in {folder}.")
