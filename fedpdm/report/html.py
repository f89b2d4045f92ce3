"""Put a report together and write it."""

import base64
import json
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedpdm.config import to_toml
from fedpdm.config.keys import flat
from fedpdm.errors import UserError
from fedpdm.report.charts import make_charts, show
from fedpdm.report.metrics import view_metrics
from fedpdm.report.model import view_model
from fedpdm.report.numbers import view_numbers
from fedpdm.report.reading import Run, Study, read_folders
from fedpdm.report.words import guarantee, majority_rate, what_was_trained
from fedpdm.runs.folder import atomic_write
from fedpdm.runs.thin import path_figures
from fedpdm.version import __version__

__all__ = ["write_report", "render"]

MOST_CLIENTS = 300  # listed one by one
VERDICTS = ("holds", "does not hold", "no difference", "undecided")


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write one HTML file about run folders. It needs no other file and no network.

    Parameters
    ----------
    paths : sequence of Path
        Run folders, and folders of `fedpdm reproduce`.
    out : Path, optional
        The file (default: report.html, in the folder if there is one, in the working folder if there are several).

    Returns
    -------
    Path
        The file.
    """
    if not paths:
        raise UserError("A report needs at least one folder.")
    page = render(*read_folders(paths))
    target = out or (paths[0] if len(paths) == 1 else Path()) / "report.html"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(target, page.encode())
    except OSError as error:
        raise UserError(f"The report {target} cannot be written: {error.strerror}. Choose another --out.") from None
    return target


def render(runs: Sequence[Run], studies: Sequence[Study]) -> str:
    """Render the page.

    Parameters
    ----------
    runs : sequence of Run
        The runs.
    studies : sequence of Study
        The reproductions.

    Returns
    -------
    str
        The page as HTML.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fedpdm.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["show"] = show
    charts = make_charts(runs)
    assets = resources.files("fedpdm.report") / "assets"
    return environment.get_template("report.html.j2").render(
        title=", ".join([run.name for run in runs] + [study.name for study in studies]),
        version=__version__,
        runs=[_run_view(run) for run in runs],
        differences=_differences(runs),
        charts=charts,
        studies=[_study_view(study) for study in studies],
        css=(assets / "report.css").read_text(encoding="utf-8"),
        scripts=[(assets / name).read_text(encoding="utf-8") for name in ("charts.js", "page.js")],
        data=_json_for_script({chart.id: {"kind": chart.kind, "curves": chart.curves} for chart in charts}),
    )


def _json_for_script(value: Any) -> str:
    """Return JSON that cannot end the script element that holds it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _tested(run: Run) -> dict[str, Any]:
    """The words around test figures. Where clients held rows out, there are figures of one model, from noised sums."""
    if not run.counted:
        return {"head": "On rows that no client holds", "units": "test rows", "model": "last model", "noise": ""}
    unit = run.summary.get("unit_column")
    return {
        "head": "On rows that clients held out, by noised sums",
        "units": f"{unit}s, by a noised count" if unit else "rows, by a noised count",
        "model": "released model",
        "noise": " They hold the noise too. A figure that the noise hides is left out (–).",
    }


def _run_view(run: Run) -> dict[str, Any]:
    toml, short = to_toml(run.config), Path(run.name).name
    again = ["fedpdm", "run", f"{short}.toml", "--out", f"runs/{short}-again"]
    if run.deployed:
        again = ["fedpdm", "flower", "init", f"jobs/{short}-again", "--from", run.name]
    return {
        "name": run.name,
        "summary": run.summary,
        "trained": what_was_trained(run),
        "majority": majority_rate(run),
        "guarantee": guarantee(run),
        "deployed": run.deployed,
        "counted": run.counted,
        "tested": _tested(run),
        "metrics": view_metrics(run),
        "numbers": view_numbers(run),
        "model": view_model(run),
        "released": "averaged" if run.config.metrics.released == "averaged" else "last",
        "interval_words": run.interval_words,
        "path": _path_view(run),
        "clients": _clients_view(run),
        "manifest": run.manifest,
        "toml": toml,
        "toml_uri": "data:text/plain;charset=utf-8," + quote(toml),
        "file": f"{short}.toml",
        "command": shlex.join(again),
    }


def _path_view(run: Run) -> dict[str, Any] | None:
    """Return the model with fewer weights, point by point, and the features that stay longest; None: not computed."""
    if "path" not in run.summary:
        return None
    points, kept = run.summary["path"], run.summary.get("kept")
    figures = path_figures(points)
    rows = [
        {
            **{key: f"{point[key]:,}".replace(",", " ") for key in ("kept", "weights", "features")},
            "figures": ["–" if point.get(key) is None else f"{point[key]:.4f}" for key in figures],
            "names": ", ".join(point["names"] or []),
            "released": point["kept"] == kept,
        }
        for point in points
    ]
    return {"rows": rows, "unit": run.summary["path_unit"], "figures": list(figures.values()), "kept": kept}


def _clients_view(run: Run) -> dict[str, Any]:
    """Return a row per client: the facts of the simulator, and its account in the ledger."""
    known = {client["client"]: client for client in run.clients.get("clients", [])}
    accounts = {account["client"]: account for account in (run.spending.accounts if run.spending else [])}
    held = max((len(client.get("labels", [])) for client in known.values()), default=0)
    classes = run.class_names if len(run.class_names) == held else [str(label) for label in range(held)]
    rows = []
    for name in dict.fromkeys([*known, *accounts]):
        client, account = known.get(name, {}), accounts.get(name)
        counts = client.get("labels", [])
        rows.append(
            {
                "name": client.get("name", name),
                "examples": client.get("examples"),
                "labels": counts,
                "held": [label for label, count in zip(classes, counts, strict=True) if count],
                "most": max(counts, default=0),
                "participations": client.get("participations", account["releases"] if account else None),
                "account": account,
            }
        )
    times = [row["participations"] for row in rows if row["participations"] is not None]
    shown = sorted(rows, key=lambda row: -(row["account"] or {}).get("epsilon_spent", 0.0))[:MOST_CLIENTS]
    return {
        "rows": rows if len(rows) <= MOST_CLIENTS else shown,
        "count": len(rows),
        "note": run.clients.get("note"),
        "classes": classes,
        "times": (min(times), max(times)) if times else None,
        "examples": sum(row["examples"] or 0 for row in rows),
    }


def _differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return the settings in which runs differ: key, and the value in every run."""
    settings = [flat(run.config.model_dump(mode="json")) for run in runs]
    keys = dict.fromkeys(key for values in settings for key in values)
    table = [
        (key, ["unset" if values.get(key) is None else json.dumps(values[key]).strip('"') for values in settings])
        for key in keys
    ]
    return [(key, values) for key, values in table if len(set(values)) > 1]


def _study_view(study: Study) -> dict[str, Any]:
    verdicts = [claim.get("verdict", "undecided") for claim in study.claims]
    return {
        "name": study.name,
        "about": study.about,
        "rule": study.rule,
        "claims": study.claims,
        "counts": [(verdict, verdicts.count(verdict)) for verdict in VERDICTS],
        "figures": [
            {"name": path.stem, "uri": "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()}
            for path in study.figures
        ],
    }
