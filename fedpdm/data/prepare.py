"""From settings to the clients' examples: load, map, clip and assign them. New rows go through the same public map."""

__all__ = ["build_federation", "prepare", "prepare_rows", "map_row", "radius_of"]

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.choices import FEATURE_MAPS, LOSSES, PARTITIONS, is_table
from fedpdm.config import Config, DataSection
from fedpdm.data.custom import READERS, load_custom
from fedpdm.data.datasets import Dataset, clip_norms, load_dataset
from fedpdm.data.encoders import OVERLAP
from fedpdm.data.feature_map import check_alone
from fedpdm.data.features import check_one_example_at_a_time, has_public_basis, make_map, options_of, without_bias
from fedpdm.data.federation import Federation, hold_out, make_federation
from fedpdm.data.partition import by_column
from fedpdm.data.scaling import scale_features, scale_rows
from fedpdm.data.schema import Schema
from fedpdm.data.split import set_apart
from fedpdm.data.texts import has_text
from fedpdm.errors import ConfigError

MANY = 10_000  # a map of this many examples takes long enough for a notice


# From slots of the clients, classes, columns before the map, and the schema to data.basis_size.
DirectionsRule = Callable[[Config, np.ndarray, int, Sequence[str], Schema | None], int]


def build_federation(
    config: Config, data_dir: Path | None = None, progress: bool = True, directions: DirectionsRule | None = None
) -> Federation:
    """Load the data set, map its examples, clip their norms, and assign them to the clients.

    With `progress` it reports on stderr what is fetched and how the columns of your own table are read. The report is for the
    owner of the rows. It is stored nowhere, since counts of missing values are not covered by any guarantee.

    Parameters
    ----------
    config : Config
        The settings.
    data_dir : Path, optional
        A folder with the original files.
    progress : bool
        Report on stderr.
    directions : callable, optional
        Gives the number that data.basis_size="auto" stands for, from public sizes. Without it "auto" is refused, unless there
        is no basis.

    Returns
    -------
    Federation
        The clients' examples.
    """
    data, schema = config.data, None
    say = (lambda words: print(f"{data.name}: {words}", file=sys.stderr, flush=True)) if progress else None
    if is_table(data.name):
        dataset, schema, notes = load_custom(data, config.privacy.mechanism == "sound", _wanted(config), say)
        if progress:
            print(f"{dataset.name}:", *notes, sep="\n", file=sys.stderr)
    else:
        dataset = load_dataset(data.name, data_dir=data_dir, progress=progress)
    count = len(dataset.features) + len(dataset.test_features)
    if progress and data.features != "raw" and count > MANY:
        print(f"{data.name}: features={data.features} of {count} examples", file=sys.stderr)
    if progress and data.features == "onnx" and config.privacy.mechanism == "sound":
        print(f"{data.name}: {OVERLAP}", file=sys.stderr)
    if directions is not None and data.basis_size == "auto" and has_public_basis(data, dataset.feature_names):
        size = directions(config, _public_slots(config, dataset), len(dataset.class_names), dataset.feature_names, schema)
        config = config.model_copy(update={"data": data.model_copy(update={"basis_size": size})})
    dataset, validation = _without_held_out(config, prepare(config, dataset, say))
    return make_federation(dataset, _deal(data, dataset))._replace(schema=schema, validation=validation)


def _without_held_out(config: Config, dataset: Dataset) -> tuple[Dataset, Any]:
    """Return the training rows of the run with its test rows, and the rows that are set apart for a threshold."""
    if config.data.validation:
        dataset = hold_out(dataset, config.data.validation)
    if isinstance(config.metrics.threshold, str):
        return set_apart(dataset, config.data.partition_seed)
    return dataset, None


def _public_slots(config: Config, dataset: Dataset) -> np.ndarray:
    """Return every client's number of rows, or of persons, before the rows are mapped."""
    plain = dataset._replace(features=dataset.features[:, :1], test_features=dataset.test_features[:, :1])
    plain, _ = _without_held_out(config, plain)
    return make_federation(plain, _deal(config.data, plain)).slots


def _wanted(config: Config) -> str | None:
    """What the loss takes a label for, if the settings name one."""
    if config.problem.loss == "auto":
        return None
    target = LOSSES.row(config.problem.loss).target
    if target == "time" and config.data.event_column is None and config.data.schema_file is None:
        raise ConfigError(
            f"problem.loss={config.problem.loss} needs the column that says whether the event was seen: --event "
            "(data.event_column), or a schema with it"
        )
    return target


def _deal(data: DataSection, dataset: Dataset) -> list[np.ndarray]:
    if data.partition == "column":
        return by_column(dataset.clients)
    if len(dataset.units):
        return _deal_persons(data, dataset.units)
    if dataset.labels.dtype.kind == "f" and data.partition != "iid":
        raise ConfigError(
            f"data.partition={data.partition} deals by classes, but the label is a number: use a client column, or iid"
        )
    row = PARTITIONS.row(data.partition)
    return row.factory()(dataset.labels, data.clients, seed=data.partition_seed, **row.arguments(data))


def _deal_persons(data: DataSection, units: np.ndarray) -> list[np.ndarray]:
    """Give all rows of a person to one client."""
    persons, place = np.unique(units, return_inverse=True)
    if data.partition != "iid" or len(persons) < data.clients:
        raise ConfigError(
            f"data.partition={data.partition} with {data.clients} clients does not fit a unit column of {len(persons)} "
            "persons, because rows of one person stay together: use a client column, or data.partition=iid with fewer clients"
        )
    order = np.random.default_rng(data.partition_seed).permutation(len(persons))
    client = np.empty(len(persons), np.int64)
    for number, own in enumerate(np.array_split(order, data.clients)):
        client[own] = number
    return by_column(client[place])


def radius_of(config: Config) -> float | None:
    """Return the bound R on every example's norm. Under the sound mechanism there always is one.

    Parameters
    ----------
    config : Config
        The settings.

    Returns
    -------
    float or None
        The bound; None: norms are not clipped.
    """
    if config.data.standardise:  # the norm is cut after it, in training only
        return None
    return config.data.radius or (1.0 if config.privacy.mechanism == "sound" else None)


def prepare(config: Config, dataset: Dataset, say: Callable[[str], None] | None = None) -> Dataset:
    """Map every example (`data.scaling`, `data.features`) and clip its norm (`data.radius`).

    Parameters
    ----------
    config : Config
        The settings.
    dataset : Dataset
        The examples as loaded.
    say : callable, optional
        Takes notices about a map that takes long.

    Returns
    -------
    Dataset
        The examples as the model sees them.
    """
    data = config.data
    _require_map(data, dataset.feature_names)
    if data.scaling != "none":
        if config.privacy.mechanism == "sound":  # a scaling of another package may be anything
            rows, columns = _made_up_rows(len(dataset.feature_names)), dataset.feature_names
            check_alone(f"scaling {data.scaling!r}", lambda some: scale_rows(data.scaling, some, columns), rows)
        dataset = scale_features(dataset, data.scaling)
    if data.features != "raw":
        chosen = make_map(data.features, dataset.feature_names, options_of(data))
        if say is not None and (words := chosen.before(without_bias(dataset.feature_names))):
            say(words)
        if config.privacy.mechanism == "sound":
            check_one_example_at_a_time(chosen, _made_up_rows(len(dataset.feature_names)), dataset.feature_names)
        dataset = chosen.apply(dataset, say)
    if radius := radius_of(config):
        dataset = dataset._replace(
            features=clip_norms(dataset.features, radius), test_features=clip_norms(dataset.test_features, radius)
        )
    return dataset


def _require_map(data: DataSection, feature_names: Sequence[str]) -> None:
    if data.features not in (*READERS, *(row.name for row in FEATURE_MAPS.added())) and has_text(feature_names):
        raise ConfigError(
            f"data.features={data.features} does not read texts, and the schema has some: set data.features=auto (hashed "
            "words), or onnx with data.encoder (--set data.standardise=false)."
        )


def map_row(config: Config, row: np.ndarray, feature_names: Sequence[str]) -> np.ndarray:
    """Map one example as `prepare` does. Nothing is stored on disk, and no other example can influence it.

    Parameters
    ----------
    config : Config
        The settings.
    row : ndarray
        [n], as loaded.
    feature_names : sequence of str
        Names of the columns.

    Returns
    -------
    ndarray
        The example as the model sees it.
    """
    data, none = config.data, np.zeros(0, np.int32)
    one = Dataset("row", row[None], none, row[None], none, (), tuple(feature_names), {})
    if data.scaling != "none":
        one = scale_features(one, data.scaling)
    features = one.features
    if data.features != "raw":
        features = make_map(data.features, feature_names, options_of(data)).rows(features, feature_names)
    if radius := radius_of(config):
        features = clip_norms(features, radius)
    return features[0]


def _made_up_rows(features: int) -> np.ndarray:
    """Return rows to try a map on. They are made up: a refusal and its reason must not depend on private rows."""
    return np.random.default_rng(0).random((4, features)).astype(np.float32)


def prepare_rows(config: Config, features: np.ndarray, feature_names: Sequence[str]) -> np.ndarray:
    """Map new rows in the same way as the rows that a model is trained on.

    Parameters
    ----------
    config : Config
        The settings.
    features : ndarray
        [examples, n].
    feature_names : sequence of str
        Names of the columns.

    Returns
    -------
    ndarray
        The rows as the model sees them.
    """
    none = np.zeros(0, np.int32)
    # maps do not take empty arrays, so one row replaces the missing test rows
    return prepare(config, Dataset("rows", features, none, features[:1], none, (), tuple(feature_names), {})).features
