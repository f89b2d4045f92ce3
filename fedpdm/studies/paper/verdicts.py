"""Is FedPDM first? The verdict of the two further studies, and the files that both write."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpdm.choices import ALGORITHMS
from fedpdm.studies.drawing import write_csv
from fedpdm.studies.statistics import t_interval, verdict

__all__ = ["first_or_within", "verdict_lines", "write_study"]

WIDTH = 125


def first_or_within(name: str, text: str, values: Mapping[str, Sequence[float]], sign: float = 1.0) -> dict[str, Any]:
    """Judge whether FedPDM is first among the algorithms, or within the 95 % interval of the first.

    Parameters
    ----------
    name : str
        The point, for the verdict's id.
    text : str
        The point in words.
    values : mapping of str to sequence of float
        One number per seed for every algorithm; differences are paired by seed.
    sign : float
        -1 where less is better.

    Returns
    -------
    dict
        The verdict, shaped like an entry of claims.json.

    Examples
    --------
    >>> values = {"fedpdm": [0.8, 0.9], "fedavg": [0.7, 0.82], "feddyn": [0.1, 0.1]}
    >>> found = first_or_within("x", "accuracy", values)
    >>> found["against"], round(found["effect"], 3), found["verdict"]
    ('fedavg', 0.09, 'holds')
    """
    others = {key: own for key, own in values.items() if key != "fedpdm"}
    best = max(others, key=lambda key: sign * sum(others[key]))
    rival = ALGORITHMS[best].title
    gaps = [sign * (a - b) for a, b in zip(values["fedpdm"], others[best], strict=True)]
    interval = t_interval(gaps)
    return {
        "id": name,
        "claim": f"{text}: FedPDM is first, or within the interval of the first",
        "check": f"FedPDM against {rival}, the best of the others: the 95 % interval of the difference reaches 0",
        "against": best,
        "effect": float(f"{interval.mean:.4g}"),
        "interval": [float(f"{interval.low:.4g}"), float(f"{interval.high:.4g}")] if len(gaps) > 1 else None,
        "verdict": "does not hold" if verdict(interval) == "does not hold" else "holds",
        "seeds": len(gaps),
    }


def verdict_lines(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format verdicts as a table in Markdown.

    Parameters
    ----------
    verdicts : sequence of mappings
        From `first_or_within`.

    Returns
    -------
    list of str
        The lines.
    """
    lines = [
        "| point | best of the others | FedPDM minus it | 95 % interval | first, or within the interval |",
        "|---|---|---|---|---|",
    ]
    for v in verdicts:
        interval = f"{v['interval'][0]:g} to {v['interval'][1]:g}" if v["interval"] else "one seed"
        rival = ALGORITHMS[v["against"]].title
        lines.append(f"| {v['claim'].split(':')[0]} | {rival} | {v['effect']:g} | {interval} | {v['verdict']} |")
    return lines


def write_study(
    name: str, title: str, text: str, folder: Path, rows: Sequence[dict[str, Any]], verdicts: Sequence[Mapping[str, Any]]
) -> None:
    """Write NAME.csv, NAME.json (the verdicts, shaped like claims.json) and NAME.md.

    Parameters
    ----------
    name, title, text : str
        Name of the files; heading and text of the page.
    folder : Path
        Folder for the results; it is created.
    rows : sequence of dict
        The results.
    verdicts : sequence of mappings
        From `first_or_within`.
    """
    shown = [{key: value for key, value in row.items() if not isinstance(value, list)} for row in rows]
    write_csv(shown, folder / f"{name}.csv")
    (folder / f"{name}.json").write_text(json.dumps(list(verdicts), indent=2) + "\n")
    held = sum(v["verdict"] == "holds" for v in verdicts)
    count = f"FedPDM is first, or within the interval of the first, at {held} of {len(verdicts)} points."
    lines = [
        f"# {title}",
        "",
        *textwrap.wrap(text, WIDTH),
        "",
        f"![{title}]({name}.png)",
        "",
        count,
        "",
        *verdict_lines(verdicts),
    ]
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
