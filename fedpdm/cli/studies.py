"""The commands `fedpdm compare` and `fedpdm reproduce`: several runs side by side, or the figures of the paper."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedpdm.cli.completion import complete_algorithms
from fedpdm.cli.interrupt import interrupted
from fedpdm.cli.options import ConfigArgument, SetOption
from fedpdm.errors import ConfigError

__all__ = ["compare_command", "reproduce_command"]

SEEDS, QUICK_SEEDS = 5, 2

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
    quiet: QuietOption = False,
) -> None:
    """Run the same settings with several algorithms: a table with intervals, and curves against rounds, bytes and epsilon.

    \b
    Example:
      fedpdm compare demo --algorithms fedavg,fedpdm --seeds 3
    """
    from fedpdm.studies.compare import all_algorithms, compare, table_lines

    folder = out or Path("runs") / f"compare-{Path(config).stem}"
    names = [name.strip() for name in algorithms.split(",") if name.strip()] or all_algorithms()
    with _resumable():
        result = compare(config, names, seeds, folder, settings or (), show_progress=not quiet)
    if as_json:
        print(json.dumps(result.rows, indent=2))
        return
    print("\n".join(table_lines(result.rows)))
    print(f"compare.csv, compare.png and compare.svg are in {folder}.")


def reproduce_command(
    figure: Annotated[str, typer.Argument(help="fig2 to fig8, all of them, or a further study: certified, heterogeneity.")],
    seeds: Annotated[int | None, typer.Option(help=f"Seeds (default: {SEEDS}; {QUICK_SEEDS} with --quick).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the rounds, fewer seeds and curves.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for results (default: below runs/).")] = None,
    quiet: QuietOption = False,
) -> None:
    """Run the paper's figures again, and judge its claims; or one of two further studies.

    \b
    Examples:
      fedpdm reproduce fig4
      fedpdm reproduce all --quick
      fedpdm reproduce heterogeneity
    """
    from fedpdm.studies.paper.figures import Scale, chosen_figures
    from fedpdm.studies.paper.reproduce import STUDIES, reproduce

    if figure not in STUDIES:
        chosen_figures(figure)
    count = (QUICK_SEEDS if quick else SEEDS) if seeds is None else seeds
    if count < 1:
        raise ConfigError(f"Expected --seeds {count} to be at least 1; a verdict needs 2.")
    folder = out or Path("runs") / ("reproduction-quick" if quick else "reproduction")
    if quick:
        print(
            "Quick: a tenth of the rounds, some of the curves, no first round of all clients: it measures nothing.", flush=True
        )
    if figure in STUDIES:
        with _resumable():
            verdicts = STUDIES[figure](folder, count, quick, not quiet)
        for v in verdicts:
            print(f"{v['verdict']:15}{v['effect']:>10.4g}  {v['claim']} (best of the others: {v['against']})")
        print(f"{figure}.md, .csv, .json, .png and .svg are in {folder}.")
        return
    command = " ".join(["fedpdm reproduce", figure, f"--seeds {count}", *(["--quick"] if quick else [])])
    with _resumable():
        result = reproduce(figure, folder, count, Scale(quick=quick), command, show_progress=not quiet)
    for claim in result.claims:
        print(f"{claim['id']:22}{claim['verdict']:15}{claim['effect']:>10.4g}  {claim['claim']}")
    if result.left_out:
        print(f"{len(result.left_out)} claims are left out, because their figures or some of their points were not run.")
    print(f"{result.cells} cells in {result.seconds:.0f} s. Figures, numbers, claims.md and claims.json are in {folder}.")


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        interrupted("interrupted. Finished runs are stored: the same command continues from there.")
