"""The commands `fedpdm data fetch`, `info`, `schema` and `basis`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedpdm.cli.options import DataDirOption
from fedpdm.errors import ConfigError

__all__ = ["data_app"]

data_app = typer.Typer(no_args_is_help=True, help="Get and describe data sets.")

SCHEMA_COMMENT = """The columns of {table}, inferred from its rows.
Under privacy.mechanism = "sound" nothing here may come from the rows: write bounds and levels that are known without them,
and remove the line from_rows.
kind is "number" (cut to [low, high]; missing_column = true adds an indicator of missing ones), "category" (an indicator per
level), "image" (brought to its shape: height, width, channels), "text" (cut to a length in bytes) or "ignored". A label has
classes, or, if it is a number, target = {{ low, high }}, to which it is cut."""


RELEASE_COMMENT = """The columns of {table}, inferred from its rows with noise: differential privacy for one row, with the
epsilon and delta of [cost], under adding or removing it. A run with this schema counts them in its budget.
Keep this file: another one would be another release, with its own cost."""


@data_app.command("fetch")
def data_fetch(name: str, data_dir: DataDirOption = None) -> None:
    """Get a data set into the cache, with its checksums verified.

    \b
    Example:
      fedpdm data fetch mnist
    """
    from fedpdm.data import load_dataset

    dataset = load_dataset(name, data_dir=data_dir)
    print(f"{name}: {len(dataset.labels)} training and {len(dataset.test_labels)} test examples are ready.")


@data_app.command("info")
def data_info(name: str, data_dir: DataDirOption = None) -> None:
    """Describe a data set: examples, features, classes, where it comes from.

    \b
    Example:
      fedpdm data info digits
    """
    from fedpdm.data import describe

    print(describe(name, data_dir=data_dir))


@data_app.command("basis")
def basis(
    rows: Annotated[Path, typer.Argument(help="A public table, images (a folder, or IDX), or an .npz file with `features`.")],
    schema: Annotated[Path | None, typer.Option(help="The schema of a table or a folder.")] = None,
) -> None:
    """Store public rows for data.basis under their digest, by which settings and jobs name them.

    \b
    Example:
      fedpdm data basis census.csv --schema people.schema.toml
    """
    from fedpdm.data.basis_files import keep_public_rows, public_rows
    from fedpdm.data.schema import read_schema

    found, notes = public_rows(rows, read_schema(schema) if schema else None)
    for note in notes:
        print(note, file=sys.stderr)
    print(f"data.basis={keep_public_rows(found)}")
    print(f"{len(found)} public rows of {found.shape[1]} columns are in the cache.", file=sys.stderr)


@data_app.command("schema")
def schema(
    table: Annotated[str, typer.Argument(help="A CSV, Parquet, NPZ or LibSVM file, or a folder of images.")],
    label: Annotated[str, typer.Option(help="The column to predict.")],
    client_column: Annotated[str | None, typer.Option(help="The column with the owner of a row.")] = None,
    unit: Annotated[str | None, typer.Option(help="The column with the person of a row.")] = None,
    target: Annotated[str | None, typer.Option(help="What the label is: classes or number (default: by its values).")] = None,
    event: Annotated[str | None, typer.Option(help="The column that says whether the event was observed.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Infer with noise: the budget of this release.")] = None,
    delta: Annotated[float, typer.Option(help="Delta of that release.")] = 1e-6,
    features: Annotated[int | None, typer.Option(help="Columns of a LibSVM file; needed with --epsilon.")] = None,
) -> None:
    """Infer the schema of a table and print it as TOML, to check, to change, and to pass as --schema.

    \b
    Example:
      fedpdm data schema people.csv --label income --client-column hospital > people.schema.toml
    """
    from fedpdm.data.schema import to_toml
    from fedpdm.data.schema_inference import infer_schema
    from fedpdm.data.tables import read_table

    if target not in (None, "classes", "number"):
        raise ConfigError(f"Unknown --target {target!r}: choose classes or number.")
    if epsilon is None:
        found, comment = infer_schema(read_table(table), label, client_column, unit, target, event), SCHEMA_COMMENT
    elif target == "number" or event is not None:
        raise ConfigError(
            "--target number and --event do not go with --epsilon, which releases classes, not the bounds of a number: leave "
            "--epsilon out, and put in what is known without the rows"
        )
    elif unit is not None:
        raise ConfigError(
            f"--unit {unit} does not fit --epsilon: the noise of a schema covers one row, not all rows of one {unit}. Remove "
            "--epsilon, and write values that are known without the rows"
        )
    else:
        from fedpdm.privacy.schema_release import release_schema

        found = release_schema(read_table(table), label, client_column, epsilon, delta, features=features)
        comment = RELEASE_COMMENT
    for note in found.notes:
        print(note, file=sys.stderr)
    print(to_toml(found.schema, comment.format(table=table)), end="")
