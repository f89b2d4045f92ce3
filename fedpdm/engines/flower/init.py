"""The files of a federation before it starts: the job, a policy to change, and the Flower app, in one folder."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomlkit

from fedpdm.config import Config, load_config, validate
from fedpdm.config import to_toml as config_toml
from fedpdm.config.conditions import TABLE_KEYS
from fedpdm.data.basis_files import with_basis_pinned
from fedpdm.data.datasets import DATASETS
from fedpdm.data.encoders import add_encoder, encoder_file, encoder_of, with_encoder_pinned
from fedpdm.data.features import directions_in, has_public_basis, options_of
from fedpdm.data.schema import Schema, read_schema, to_toml
from fedpdm.engines.flower.job import Evaluation, Job, job_toml, make_job, read_job
from fedpdm.engines.flower.job_schema import check_table
from fedpdm.errors import ConfigError, UserError
from fedpdm.runs.folder import RunFolder, atomic_write
from fedpdm.setup.defaults import Sizes, by_rule, sizes_of
from fedpdm.setup.directions import with_directions
from fedpdm.setup.resolve import directions_of_federation, with_loss
from fedpdm.version import __version__

__all__ = ["Arrays", "job_from", "policy_for", "write_job", "write_app", "POLICY"]


class Arrays(NamedTuple):
    """The names for bare arrays."""

    classes: list[str]  # names of the labels 0, 1, ...
    features: list[str]  # the columns


POLICY = """# The terms of this client. A request beyond them is refused; `fedpdm flower status` lists refusals with reasons.
[budget]                       # the most that this client's examples may ever cost, in all jobs together
epsilon = {epsilon}
delta = {delta}
relation = "{relation}"

[jobs]
take = "approved"              # jobs that `fedpdm flower approve` has stored; "within-limits": any that is not forbidden below

[allow]
algorithms = ["{algorithm}"]
mechanisms = ["{mechanism}"]       # "none" would let messages leave without any privacy
noise = ["{noise}"]             # "simulation" would protect nothing{encoders}

[limits]
noise_multiplier_min = {least_noise}     # smallest noise over the sensitivity, per participation
participations_max = {participations}        # in one job{standard}{intervals}
steps_max = {steps}
step_size_max = {step_size}
"""
COHORT = """
[cohort]                       # whom this client shares secure sums with
keys = [                       # public keys of all members, its own too: `fedpdm flower identity STATE-DIR` prints it
{keys}]
size = {members}
colluding = {colluding}
dropouts = {dropouts}
"""


INTERVALS = "\ninterval_noise_multiplier_min = {:.3g}     # the same of gradients and curvature after training"
STANDARD = "\nstandard_noise_multiplier_min = {:.3g}     # the same of the means and deviations before training"


def job_from(
    source: str,
    settings: list[str],
    *,
    slots: Sequence[int] | None,
    unit_rows: int | None = None,
    schema: Path | None = None,
    arrays: Arrays | None = None,
    noise: str = "secure",
    evaluation: Evaluation | None = None,
    data_dir: Path | None = None,
) -> Job:
    """Make a job from a run folder, a preset or a settings file.

    Parameters
    ----------
    source, settings
        A run's folder, a preset's name or a TOML file; and `KEY=VALUE` settings.
    slots
        The public number of places for rows (or persons) at every client: one for all, or one for each of them. Known data
        sets, and the run of a job, need none.
    unit_rows
        The most rows of one person that count, where the schema names persons.
    schema
        The schema of your own table; a run's folder has it.
    arrays
        For your own data without a schema, in NPZ files of `features` and `labels`; the run of such a job has it.
    noise, evaluation
        As in `Job`.
    data_dir
        The folder of the files of known data sets.

    Returns
    -------
    Job
        The job.
    """
    config, table = _read_source(source, settings)
    config = with_basis_pinned(with_encoder_pinned(config))
    if digest := encoder_of(config):  # a job names no path: server and nodes find the file by its digest
        add_encoder(encoder_file(options_of(config.data)["encoder"], digest))
    table = read_schema(schema) if schema else table
    if (earlier := Path(source) / "job.toml").is_file():  # the folder of a run that was deployed
        before = read_job(earlier)
        slots, table = slots or before.client_slots or [before.slots], table or before.table
        arrays, unit_rows = arrays or Arrays(before.classes, before.features), unit_rows or before.unit_rows
    others: dict[str, Any] = {"noise": noise, "evaluation": evaluation.model_dump() if evaluation else None}
    if config.data.name in DATASETS:
        return _known_job(config, slots, data_dir, others)
    if not slots:
        units = f"number of {table.unit_column}s" if table and table.unit_column else "number of rows"
        raise ConfigError(
            f"Own data need --slots: a public number that is at least the {units} of every client, or one for each client "
            "(--slots 500,80,1200), which lets small ones have less noise."
        )
    others["client_slots"] = list(slots) if len(slots) > 1 else []
    each = np.array(slots if len(slots) > 1 else [slots[0]] * config.data.clients, float)
    if table is None and arrays is not None:
        config = with_directions(with_loss(config, "classes"), each, len(arrays.classes), arrays.features)
        config = by_rule(config, _sizes(config, each, len(arrays.classes), arrays.features))
        return make_job(_for_nodes(config), max(slots), *arrays, **others)
    if table is None:
        raise ConfigError(
            "Own data need their public schema: --schema FILE (`fedpdm data schema` makes one), or --from a run of it. NPZ "
            "files of features and labels need --columns and --classes instead."
        )
    check_table(table)
    if table.unit_column and unit_rows is None:
        raise ConfigError(f"The schema names the unit {table.unit_column!r}: say how many rows of one count, --unit-rows 10.")
    plain = Schema.model_validate(table.model_dump() | {"client": None, "columns": _without_client(table)})
    config = with_loss(config, plain.target.kind if plain.target else "classes")
    config = with_directions(config, each, len(plain.outputs), plain.feature_names)
    sizes = _sizes(config, each, len(plain.outputs), plain.feature_names)
    rows = plain.target.bands if plain.target and plain.target.event else unit_rows or 1
    others |= {"unit_rows": rows, "table": plain.model_dump()}
    return make_job(_for_nodes(by_rule(config, sizes)), max(slots), plain.outputs, plain.feature_names, **others)


def _sizes(config: Config, slots: np.ndarray, classes: int, columns: Sequence[str]) -> Sizes:
    """Return the public sizes for the rule: behind a basis the features are its directions."""
    if has_public_basis(config.data, columns):
        return Sizes(slots, directions_in(config.data) + 1, classes, based=True)
    return Sizes(slots, len(columns), classes)


def _read_source(source: str, settings: list[str]) -> tuple[Config, Schema | None]:
    path = Path(source)
    if not (path / "manifest.json").is_file():
        return load_config(source, settings), None
    folder = RunFolder(path)
    config, schema = folder.config(), read_schema(folder.schema_path) if folder.schema_path.is_file() else None
    if settings:
        with tempfile.TemporaryDirectory() as draft:
            (Path(draft) / "run.toml").write_text(config_toml(config), encoding="utf-8")
            config = load_config(str(Path(draft) / "run.toml"), settings)
    clients = folder.clients_path
    chosen = any(setting.partition("=")[0].strip() == "data.clients" for setting in settings)
    if config.data.partition == "column" and clients.is_file() and not chosen:
        count = len(json.loads(clients.read_text())["clients"])
        config = config.model_copy(update={"data": config.data.model_copy(update={"clients": count})})
    return config, schema


def _without_client(table: Schema) -> dict[str, Any]:
    return {name: column.model_dump() for name, column in table.columns.items() if name != table.client}


def _for_nodes(config: Config) -> Config:
    """Return the settings of a simulation without its file, its schema and its partition, which only a simulation needs."""
    values = config.model_dump()
    values["data"] |= dict.fromkeys(TABLE_KEYS) | {"name": "own", "partition": "iid"}
    if config.data.features == "onnx":  # the nodes find the file by its digest
        values["data"]["encoder"] = Path(values["data"]["encoder"]).name
    values["privacy"]["defaults"] = "given"
    return validate(values)


def _known_job(config: Config, slots: Sequence[int] | None, data_dir: Path | None, others: dict[str, Any]) -> Job:
    from fedpdm.data.datasets import load_dataset
    from fedpdm.setup.directions import federate

    config = with_loss(config, "classes")
    known = federate(config, data_dir, progress=False)
    config = by_rule(directions_of_federation(config, known), sizes_of(known))
    config = config.model_copy(update={"privacy": config.privacy.model_copy(update={"defaults": "given"})})
    features = load_dataset(config.data.name, data_dir=data_dir, progress=False).feature_names
    if slots and len(slots) > 1:
        others |= {"client_slots": list(slots)}
    return make_job(config, max(slots) if slots else known.max_size, known.class_names, features, **others)


def write_job(folder: Path, job: Job, *, out: str, data_dir: Path | None = None) -> Path:
    """Write job.toml, policy.toml, schema.toml (of a table) and the Flower app into a new folder.

    Parameters
    ----------
    folder, job
        The folder and the job.
    out : str
        The run folder on the server.
    data_dir : Path, optional
        The folder of data files on the server.

    Returns
    -------
    Path
        The job's file.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.absolute() / "job.toml"
    atomic_write(path, job_toml(job).encode())
    atomic_write(folder / "policy.toml", policy_for(job).encode())
    if job.table is not None:
        atomic_write(folder / "schema.toml", to_toml(job.table).encode())
    options = {"job": str(path), "out": out, "nodes": 0, "wait": 600.0, "timeout": 600.0}
    write_app(folder / "app", options | {"data_dir": str(data_dir.absolute()) if data_dir else ""})
    return path


def policy_for(job: Job, keys: Sequence[str] = ()) -> str:
    """A policy that holds this job once, and not much more.

    Parameters
    ----------
    job
        What is to be allowed.
    keys
        Of secure sums: the members' public keys, as far as they are known.

    Returns
    -------
    str
        The file's text.
    """
    config, plan = job.config, job.setup[1]
    privacy = config.privacy
    epsilon = (privacy.epsilon or 1.0) + (job.evaluation.epsilon if job.evaluation else 0.0)
    text = POLICY.format(
        epsilon=float(epsilon),
        delta=privacy.delta,
        relation=privacy.relation,
        algorithm=config.algorithm.name,
        mechanism=privacy.mechanism,
        noise=job.noise,
        encoders=f'\nencoders = ["{encoder}"]  # SHA-256 of public encoders' if (encoder := encoder_of(config)) else "",
        least_noise=f"{0.99 * plan.cost_multiplier():.3g}" if plan else "1.0",
        standard=STANDARD.format(0.99 * plan.standard_cost_multiplier()) if plan and plan.standard_multiplier else "",
        intervals=INTERVALS.format(0.99 * plan.interval_cost_multiplier()) if plan and plan.interval_multiplier else "",
        participations=plan.participations if plan else config.rounds.total,
        steps=config.local.steps,
        step_size=float(config.local.step_size),
    )
    if plan is None or plan.shared is None:
        return text
    cohort = plan.shared.cohort
    listed = "".join(f'    "{key}",\n' for key in keys)
    return text + COHORT.format(keys=listed, members=cohort.members, colluding=cohort.colluding, dropouts=cohort.dropouts)


def write_app(folder: Path, options: dict[str, Any]) -> Path:
    """Write a Flower app: only a pyproject.toml, since this package contains its parts.

    Parameters
    ----------
    folder : Path
        The folder of the app.
    options : dict
        The server's options.

    Returns
    -------
    Path
        The folder.
    """
    document = {
        "project": {
            "name": "fedpdm-app",
            "version": __version__,
            "description": "Federated primal-dual learning",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedpdm",
                    "components": {
                        "serverapp": "fedpdm.engines.flower.server.app:app",
                        "clientapp": "fedpdm.engines.flower.client.app:app",
                    },
                    "config": {"flower": options},
                }
            }
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(tomlkit.dumps(document), encoding="utf-8")
    return folder
