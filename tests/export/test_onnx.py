"""An exported ONNX model, run by onnxruntime, gives the predictions of `fedpdm predict`."""

from pathlib import Path

import numpy as np
import pytest

from fedpdm.choices import SCALINGS
from fedpdm.config import validate
from fedpdm.data.adult import ADULT_COLUMNS
from fedpdm.data.prepare import prepare_rows
from fedpdm.data.rows import encode_rows
from fedpdm.data.schema import read_schema
from fedpdm.data.tables import Table, table_from_columns
from fedpdm.export.onnx.model import export_onnx
from fedpdm.runs.saved import SavedModel

SCHEMA = Path(__file__).parents[2] / "examples" / "hospital" / "hospital.schema.toml"


def rows_of(model: SavedModel, table: Table) -> np.ndarray:
    """What the map gives; the weights need not be there yet."""
    encoded, names, _ = encode_rows(model.config.data.name, model.schema, table)
    return prepare_rows(model.config, encoded, names)


def run_onnx(model: SavedModel, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(export_onnx(model), providers=["CPUExecutionProvider"])
    labels, shares = session.run(["label", "probabilities"], inputs)
    return np.asarray(labels), np.asarray(shares)


def awkward_patients() -> dict[str, list]:
    """Missing numbers and words, values beyond the bounds, and words that no level names."""
    return {
        "age": [20.0, 130.0, None, 64.0, 18.0],
        "sex": ["f", "m", None, "x", "m"],
        "blood_pressure": [None, 120.0, 300.0, 140.0, 80.0],
        "ward": ["heart", "lung", "surgery", "cellar", None],
        "days": [1.0, 4.0, 0.0, 31.0, 2.0],
        "smoker": ["no", "yes", "yes", None, "no"],
    }


@pytest.mark.parametrize(
    "data",
    [
        {"scaling": "bounded"},
        {"scaling": "none", "radius": 1.5},
        {"scaling": "unit"},
        {"scaling": "centred-root", "radius": 0.9},
        {"scaling": "none", "features": "piecewise"},
        {"scaling": "none", "features": "fourier", "fourier_count": 50, "fourier_bandwidth": 0.5},
    ],
)
@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_onnx_gives_the_predictions_of_fedpdm_predict(data, loss):
    schema = read_schema(SCHEMA)
    config = validate({"data": {"name": "own.csv", **data}, "problem": {"loss": loss}})
    patients = awkward_patients()
    model = SavedModel(np.zeros((2, 0), np.float32), tuple(schema.classes), (), config, schema)
    width = rows_of(model, table_from_columns(patients)).shape[1]
    model = model._replace(weights=np.random.default_rng(3).normal(size=(2, width)).astype(np.float32))
    expected = model.probabilities(model.features(table_from_columns(patients))[0])
    inputs = {
        name: np.array([["" if v is None else v] for v in values], object)
        if isinstance(values[1], str)
        else np.array([[np.nan if v is None else v] for v in values], np.float32)
        for name, values in patients.items()
    }
    labels, shares = run_onnx(model, inputs)
    np.testing.assert_allclose(shares, expected, atol=1e-5)
    assert labels.tolist() == [schema.classes[place] for place in expected.argmax(axis=1)]


@pytest.mark.parametrize(
    "data",
    [
        *({"name": "digits", "scaling": row.name} for row in SCALINGS.values() if row.unit),
        {"name": "digits", "features": "scattering", "scattering_scale": 1},
        {"name": "digits", "features": "scattering", "scattering_scale": 3},
        {"name": "mnist", "features": "auto"},
        {"name": "digits", "features": "scattering", "scattering_scale": 2, "scattering_centre": "strokes"},
        {"name": "digits", "features": "scattering", "basis": "auto", "basis_size": 12},
        {"name": "digits", "features": "scattering", "basis": "shapes", "basis_size": 5},
        {"name": "mnist", "features": "fourier", "fourier_count": 70},
    ],
)
def test_models_of_images_predict_and_export_too(data):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 17, size=(4, 64 if data["name"] == "digits" else 784)).astype(np.float32)
    table = table_from_columns({f"p{column}": pixels[:, column] for column in range(pixels.shape[1])})
    classes = tuple(map(str, range(10)))
    model = SavedModel(np.zeros((10, 0), np.float32), classes, (), validate({"data": {"scaling": "none", **data}}), None)
    features = rows_of(model, table)
    model = model._replace(weights=rng.normal(size=(10, features.shape[1])).astype(np.float32))
    labels, shares = run_onnx(model, {"pixels": pixels})
    expected = model.probabilities(features)
    assert expected.std(axis=0).max() > 0.001  # the rows differ
    np.testing.assert_allclose(shares, expected, atol=1e-5)
    assert labels.tolist() == [classes[place] for place in expected.argmax(axis=1)]


def test_adult_behind_its_knots_exports_too():
    """Gains of zero apart, logarithms, a column that is left out."""
    rng = np.random.default_rng(0)
    columns = {
        name: rng.choice([0.0, 150.0, 4000.0, 20.0, 99999.0], 6) if code[0].isdigit() else rng.choice([*code, "?"], 6).tolist()
        for name, code in ADULT_COLUMNS.items()
        if list(code) != ["-"]
    }
    table = table_from_columns({name: list(values) for name, values in columns.items()})
    config = validate({"data": {"name": "adult", "scaling": "none", "features": "auto"}})
    model = SavedModel(np.zeros((2, 0), np.float32), ("<=50K", ">50K"), (), config, None)
    features = rows_of(model, table)
    model = model._replace(weights=rng.normal(size=(2, features.shape[1])).astype(np.float32))
    inputs = {
        name: np.array(values, object if isinstance(values, list) else np.float32)[:, None] for name, values in columns.items()
    }
    np.testing.assert_allclose(run_onnx(model, inputs)[1], model.probabilities(features), atol=1e-5)
