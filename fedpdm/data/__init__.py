"""Data sets: found, checked, encoded by a public map, assigned to clients and stacked."""

__all__ = [
    "DATASETS",
    "Dataset",
    "DatasetInfo",
    "load_dataset",
    "describe",
    "encode_adult",
    "clip_norms",
    "with_bias",
    "labels_per_client",
    "one_class_per_client",
    "dirichlet",
    "iid",
    "Federation",
    "make_federation",
    "federation_from_arrays",
    "hold_out",
    "mask",
    "Table",
    "read_table",
    "table_from_columns",
    "table_from_bunch",
    "Schema",
    "read_schema",
    "infer_schema",
    "Encoded",
    "encode",
    "DataFiles",
    "cache_dir",
    "fetch",
]

from fedpdm.data.adult import encode_adult
from fedpdm.data.datasets import (
    DATASETS,
    Dataset,
    DatasetInfo,
    clip_norms,
    describe,
    load_dataset,
    with_bias,
)
from fedpdm.data.encoding import Encoded, encode
from fedpdm.data.federation import Federation, federation_from_arrays, hold_out, make_federation, mask
from fedpdm.data.partition import dirichlet, iid, labels_per_client, one_class_per_client
from fedpdm.data.schema import Schema, read_schema
from fedpdm.data.schema_inference import infer_schema
from fedpdm.data.sources import DataFiles, cache_dir, fetch
from fedpdm.data.tables import Table, read_table, table_from_bunch, table_from_columns
