"""The commands for tables of one's own: `fedpdm data schema`, `fedpdm predict`, `fedpdm export`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpdm.errors import ConfigError, UserError

if TYPE_CHECKING:
    from fedpdm.runs.saved import SavedModel

__all__ = ["register", "table_settings"]

RunArgument = Annotated[Path, typer.Argument(help="The folder of a finished run.")]
OutOption = Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")]
WeightsOption = Annotated[
    float | None,
    typer.Option(help="Keep this share (below 1) or number of the weights, refitted on made-up rows; costs no privacy."),
]
AveragedOption = Annotated[bool, typer.Option("--averaged", help="The tail-averaged model instead of the last one.")]

SCHEMA_COMMENT = """What the columns of {table} are, read off its rows.
Under privacy.mechanism = "sound" nothing here may tell about the rows: put in bounds and levels that are known without them,
and take the line from_rows out.
kind is "number" (cut to [low, high]; missing_column = true adds an indicator of missing ones), "category" (an indicator per
level) or "ignored"."""


RELEASE_COMMENT = """What the columns of {table} are, read off its rows with noise: differential privacy for one row, with the
epsilon and delta of [cost], under adding or removing it. A run with this schema counts them in its budget.
To make another one is another release: keep this one."""


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
) -> list[str]:
    """The flags for own tables as settings: each is shorthand for a key of the settings."""
    flags: dict[str, str | float | None] = {
        "data.name": data,
        "data.label": label,
        "data.client_column": client_column,
        "data.schema_file": schema,
        "data.test_file": test,
        "data.test_share": test_share,
        "data.unit_column": unit,
        "data.min_rows": min_rows,
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


def register(app: typer.Typer, data_app: typer.Typer) -> None:
    data_app.command("schema")(schema)
    app.command()(predict)
    app.command()(export)


def schema(
    table: Annotated[str, typer.Argument(help="A CSV, Parquet, NPZ or LibSVM file.")],
    label: Annotated[str, typer.Option(help="The column to predict.")],
    client_column: Annotated[str | None, typer.Option(help="The column that says whose row it is.")] = None,
    unit: Annotated[str | None, typer.Option(help="The column that names the person that a row is about.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Read the rows with noise: the budget of this release.")] = None,
    delta: Annotated[float, typer.Option(help="Delta of that release.")] = 1e-6,
    features: Annotated[int | None, typer.Option(help="With --epsilon, of a LibSVM file: the number of its columns.")] = None,
) -> None:
    """Print what the columns of a table are, as TOML, to look at, to change, and to pass as --schema.

    \b
    Example:
      fedpdm data schema people.csv --label income --client-column hospital > people.schema.toml
    """
    from fedpdm.data.schema import to_toml
    from fedpdm.data.schema_inference import infer_schema
    from fedpdm.data.tables import read_table

    if epsilon is None:
        found, comment = infer_schema(read_table(table), label, client_column, unit), SCHEMA_COMMENT
    elif unit is not None:
        raise ConfigError(
            f"--unit {unit} does not go with --epsilon: a schema that is read with noise covers one row, not all rows of one "
            f"{unit}; leave --epsilon out, and put in what is known without the rows"
        )
    else:
        from fedpdm.privacy.schema_release import release_schema

        found = release_schema(read_table(table), label, client_column, epsilon, delta, features=features)
        comment = RELEASE_COMMENT
    for note in found.notes:
        print(note, file=sys.stderr)
    print(to_toml(found.schema, comment.format(table=table)), end="")


def predict(
    run: RunArgument,
    rows: Annotated[str, typer.Argument(help="A table with the columns that the model was trained on.")],
    out: OutOption = None,
    keep: Annotated[list[str] | None, typer.Option(help="A column to copy, for instance an id; may be repeated.")] = None,
    averaged: AveragedOption = False,
    weights: WeightsOption = None,
) -> None:
    """Predict the class of new rows, with probabilities, as CSV.

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
) -> None:
    """Give the model away: plain coefficients as CSV, or ONNX from the columns to the class.

    \b
    Examples:
      fedpdm export runs/mine
      fedpdm export runs/mine --format onnx --out model.onnx
      fedpdm export runs/mine --weights 0.05
    """
    if kind not in ("csv", "onnx"):
        raise ConfigError(f"Unknown --format {kind!r}: choose csv or onnx.")
    if kind == "onnx" and out is None:
        raise ConfigError("ONNX is not text: name a file for it with --out, for instance --out model.onnx.")
    model = _model(run, averaged, weights)
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
