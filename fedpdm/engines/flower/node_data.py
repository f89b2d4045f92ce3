"""A client's own examples: a part of a known data set, or a file of its own."""

import hashlib
import io
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpdm.config import Config
from fedpdm.data.datasets import Dataset
from fedpdm.errors import DataError
from fedpdm.runs import atomic_write

__all__ = ["OwnExamples", "Source", "load_examples", "cut_norms"]


class Source(NamedTuple):
    """Where a node finds its examples."""

    client: int
    path: Path | None  # None: this client's part of the data set that the settings name
    data_dir: Path | None  # where known data sets are looked for


class OwnExamples(NamedTuple):
    """A client's examples behind the public map, and the public number of classes."""

    features: np.ndarray  # [n, d] float32
    labels: np.ndarray  # [n] int32
    classes: int


def load_examples(source: Source, config: Config, cache: Path) -> OwnExamples:
    """The examples, prepared as the settings say.

    A new process starts for every message, so what was prepared is kept in the folder `cache` under a name made of the
    settings and of the file's size and time.
    """
    path = cache / f"examples-{_key(source, config)}.npz"
    if path.is_file():
        with np.load(path) as arrays:
            return OwnExamples(arrays["features"], arrays["labels"], int(arrays["classes"]))
    examples = _part(source, config) if source.path is None else _file(source.path, config)
    content = io.BytesIO()
    np.savez(content, features=examples.features, labels=examples.labels, classes=examples.classes)
    atomic_write(path, content.getvalue())
    return examples


def cut_norms(features: np.ndarray, radius: float) -> np.ndarray:
    """The features in float64, their norms at most `radius`: float32 alone would let them exceed it in the last digits."""
    exact = features.astype(np.float64)
    limit = radius * (1 - 1e-12)
    norms = np.sqrt(np.sum(exact**2, axis=1, keepdims=True))
    return exact * np.minimum(1.0, limit / np.maximum(norms, limit))


def _key(source: Source, config: Config) -> str:
    about = [config.data.model_dump(mode="json"), config.privacy.mechanism, source.client]
    if source.path is not None:
        try:
            status = source.path.stat()
        except OSError as error:
            raise DataError(f"The data file {source.path} cannot be read: {error.strerror}.") from None
        about += [str(source.path.absolute()), status.st_size, status.st_mtime_ns]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def _part(source: Source, config: Config) -> OwnExamples:
    from fedpdm.experiment import build_dataset, deal  # slow to import, and seldom needed

    dataset = build_dataset(config, source.data_dir, progress=False)
    mine = deal(config, dataset.labels)[source.client]
    return OwnExamples(dataset.features[mine], dataset.labels[mine], len(dataset.class_names))


def _file(path: Path, config: Config) -> OwnExamples:
    from fedpdm.experiment import prepare

    dataset = prepare(config, _read_npz(path))
    return OwnExamples(dataset.features, dataset.labels, len(dataset.class_names))


def _read_npz(path: Path) -> Dataset:
    """Arrays `features` [n, d] and `labels` [n], and the public number `classes`."""
    from fedpdm.data.federation import federation_from_arrays

    try:
        with np.load(path) as arrays:
            features, labels, classes = arrays["features"], arrays["labels"], int(arrays["classes"])
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} is not an NPZ file with features, labels and the number of classes ({error}): write it with "
            "numpy.savez(path, features=..., labels=..., classes=...)."
        ) from None
    checked = federation_from_arrays([(features, labels)], features[:1], labels[:1])
    if int(labels.max()) >= classes:
        raise DataError(
            f"{path} has label {int(labels.max())}, but says that there are {classes} classes: labels count from 0."
        )
    names = tuple(map(str, range(classes)))
    nothing = checked.test_features[:0], checked.test_labels[:0]
    return Dataset(path.name, checked.features[0], checked.labels[0], *nothing, names, checked.feature_names, {})
