"""The commands that use a finished model, `fedpdm predict` and `fedpdm export`, and the flags for tables."""

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpdm.choices import is_table
from fedpdm.errors import ConfigError, UserError

if TYPE_CHECKING:
    from fedpdm.runs.saved import SavedModel

__all__ = ["export", "predict", "preset_for", "table_settings"]

RunArgument = Annotated[Path, typer.Argument(help="The folder of a finished run.")]
OutOption = Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")]
WeightsOption = Annotated[
    float | None,
    typer.Option(help="Keep this share (below 1) or number of the weights, refitted on made-up rows; costs no privacy."),
]
AveragedOption = Annotated[bool, typer.Option("--averaged", help="The tail-averaged model; else the one that is released.")]


def table_settings(
    data: str | None,
    label: str | None,
    client_column: str | None,
    schema: str | None,
    test: str | None,
    test_share: float | None,
    epsilon: float | None,
    unit: str | None,
    min_rows: int | None,
    event: str | None = None,
) -> list[str]:
    """Turn the flags for tables into settings: each is shorthand for a key.

    Parameters
    ----------
    data, label, client_column, schema, test, test_share, epsilon, unit, min_rows, event
        The flags of `fedpdm run`; None: not given.

    Returns
    -------
    list of str
        Settings `KEY=VALUE`.
    """
    if data is not None and not is_table(data) and Path(data).is_dir():
        data = f"./{data}"  # a path, and not the name of a known data set
    flags: dict[str, str | float | None] = {
        "data.name": data,
        "data.label": label,
        "data.client_column": client_column,
        "data.schema_file": schema,
        "data.test_file": test,
        "data.test_share": test_share,
        "data.unit_column": unit,
        "data.min_rows": min_rows,
        "data.event_column": event,
        "privacy.epsilon": epsilon,
    }
    settings = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in flags.items() if value is not None]
    if client_column is not None or _names_client(schema):
        settings.append("data.partition=column")
    if epsilon is not None:
        settings.append("privacy.mechanism=sound")
    return settings


def _names_client(schema: str | None) -> bool:
    from fedpdm.data.schema import read_schema

    return schema is not None and read_schema(schema).client is not None


def preset_for(
    data: str | None,
    schema: str | None,
    epsilon: float | None,
    roles: Collection[str | None] = (),
    settings: Sequence[str] = (),
) -> str:
    """Return the preset for the flags: images and texts have a public feature map, tables only if a setting names one.

    Parameters
    ----------
    data, schema, epsilon
        The flags of `fedpdm run`; None: not given.
    roles : collection of str
        The columns of label, client, unit and event.
    settings : sequence of str
        Settings `KEY=VALUE` of the user.

    Returns
    -------
    str
        The name of the preset.
    """
    from fedpdm.data.peek import needs_map
    from fedpdm.data.schema import Image, Text, read_schema

    if data is None:
        return "demo"
    chosen = dict(setting.split("=", 1) for setting in settings if "=" in setting).get("data.features")
    if chosen is not None:
        mapped = chosen.strip(" \"'") != "raw"
    elif schema is not None:
        mapped = any(isinstance(column, Image | Text) for column in read_schema(schema).columns.values())
    else:
        mapped = needs_map(data, roles)
    return ("" if epsilon is None else "private-") + ("mapped" if mapped else "table")


def predict(
    run: RunArgument,
    rows: Annotated[str, typer.Argument(help="A table with the columns that the model was trained on, or a folder of images.")],
    out: OutOption = None,
    keep: Annotated[list[str] | None, typer.Option(help="A column to copy, for instance an id; may be repeated.")] = None,
    averaged: AveragedOption = False,
    weights: WeightsOption = None,
) -> None:
    """Predict the class of new rows, with probabilities, or their number, as CSV.

    \b
    Example:
      fedpdm predict runs/mine rows.csv --keep id --out predictions.csv
    """
    from fedpdm.data.tables import read_table

    text, notes = _model(run, averaged, weights).predictions_csv(read_table(rows), keep or ())
    for note in notes:
        print(note, file=sys.stderr)
    _write(out, text.encode())


def export(
    run: RunArgument,
    kind: Annotated[
        str, typer.Option("--format", help="csv: coefficients by feature and class; onnx: the whole model.")
    ] = "csv",
    out: OutOption = None,
    averaged: AveragedOption = False,
    weights: WeightsOption = None,
    intervals: Annotated[
        float | None,
        typer.Option(help="csv: an interval at this level, for instance 0.95, and a p-value for every coefficient."),
    ] = None,
) -> None:
    """Export the model: plain coefficients as CSV, or ONNX from the columns to the class.

    \b
    Examples:
      fedpdm export runs/mine
      fedpdm export runs/mine --format onnx --out model.onnx
      fedpdm export runs/mine --weights 0.05
      fedpdm export runs/mine --intervals 0.95
    """
    if kind not in ("csv", "onnx"):
        raise ConfigError(f"Unknown --format {kind!r}: choose csv or onnx.")
    if kind == "onnx" and out is None:
        raise ConfigError("ONNX is not text: name a file for it with --out, for instance --out model.onnx.")
    if intervals is not None and (kind != "csv" or weights is not None or averaged or not 0 < intervals < 1):
        raise ConfigError(
            f"--intervals {intervals:g} is a level between 0 and 1, for --format csv of the model that the run releases: leave "
            "--weights and --averaged out."
        )
    model = _model(run, averaged, weights)
    if intervals is not None:
        _write(out, model.intervals_csv(intervals).encode())
        if model.interval_note:
            print(model.interval_note, file=sys.stderr)
        return
    if kind == "csv":
        _write(out, model.coefficients_csv().encode())
        return
    from fedpdm.export.onnx.model import export_onnx

    _write(out, export_onnx(model))


def _model(run: Path, averaged: bool, weights: float | None) -> "SavedModel":
    from fedpdm.runs.saved import load_model

    model = load_model(run, averaged)
    return model if weights is None else model.thinned(weights)


def _write(out: Path | None, content: bytes) -> None:
    from fedpdm.runs.folder import atomic_write

    if out is None:
        sys.stdout.write(content.decode())
        return
    try:
        atomic_write(out, content)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.") from None
    print(f"Written: {out}", file=sys.stderr)
