"""A person's own table, from the file to predictions on new rows, and the mistakes that people make."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpdm.cli.main import main
from fedpdm.config import Config, load_config
from fedpdm.data.adult import ADULT_COLUMNS, encode_adult
from fedpdm.data.custom import load_custom
from fedpdm.data.encoding import encode
from fedpdm.data.prepare import build_federation
from fedpdm.data.rows import adult_schema
from fedpdm.data.schema import read_schema
from fedpdm.data.tables import read_table, table_from_columns
from fedpdm.errors import ConfigError, DataError
from fedpdm.report.model import view_model
from fedpdm.report.reading import read_folders
from fedpdm.runs.folder import read_models
from fedpdm.runs.saved import load_model
from fedpdm.setup.resolve import resolve

HOSPITAL = Path(__file__).parents[2] / "examples" / "hospital"
SCHEMA = HOSPITAL / "hospital.schema.toml"
QUICK = ["--set", "rounds.total=3", "--set", "local.steps=5"]


def command(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """The command in this process: exit code, output, errors."""
    monkeypatch.setattr(sys, "argv", ["fedpdm", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    captured = capsys.readouterr()
    return int(end.value.code or 0), captured.out, captured.err


@pytest.fixture(scope="module")
def hospital(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("hospital") / "hospital.csv"
    subprocess.run([sys.executable, HOSPITAL / "make_table.py", path], check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def private_run(hospital) -> tuple[Path, str, str]:
    """The hospitals' private run, as a person types it."""
    out = hospital.parent / "run"
    flags = ["--data", hospital, "--schema", SCHEMA, "--epsilon", "3", "--out", out]
    done = subprocess.run([sys.executable, "-m", "fedpdm.cli.main", "run", *map(str, flags)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out, done.stdout, done.stderr


def test_the_example_runs_privately_and_shows_what_it_took_the_columns_for(private_run):
    folder, printed, said = private_run
    assert "epsilon = 3 and delta = 1e-05 for one example of one client" in printed
    assert "1760 rows of 6 clients to learn from, 440 to test with" in said
    assert "blood_pressure: 148 missing values stand at the middle of the bounds, 140" in said
    assert "days: 1 value outside [1, 30] is cut to it" in said
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test_accuracy_averaged"] > 0.65
    assert "missing" not in json.dumps(summary)  # counts of private rows stay with their owner
    assert read_schema(folder / "schema.toml") == read_schema(SCHEMA)
    assert summary["seconds"] > 0
    assert "it measures accuracy at this privacy level and protects nobody" in printed
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["config"]["data"]["client_column"] == "hospital"
    assert manifest["config"]["data"]["clients"] == 6
    assert manifest["config"]["rounds"]["participants"] == 6


def test_predict_gives_class_and_probabilities_for_rows_without_a_label(private_run, hospital, monkeypatch, capsys):
    folder, _, _ = private_run
    with hospital.open() as file:
        rows = list(csv.DictReader(file))[:200]
    path, out = hospital.parent / "rows.csv", hospital.parent / "predictions.csv"
    wanted = [name for name in rows[0] if name not in ("readmitted", "hospital", "patient")]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, wanted, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    code, _, said = command(monkeypatch, capsys, "predict", folder, path, "--out", out, "--averaged")
    assert code == 0
    assert "blood_pressure:" in said
    predictions = list(csv.DictReader(io.StringIO(out.read_text())))
    assert len(predictions) == 200
    for row in predictions:
        shares = {name: float(row[f"probability {name}"]) for name in ("no", "yes")}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert row["predicted"] == max(shares, key=lambda name: shares[name])
    right = np.mean([p["predicted"] == row["readmitted"] for p, row in zip(predictions, rows, strict=True)])
    assert right > 0.65


def test_what_a_person_knows_the_rows_and_clients_by_is_kept(private_run, hospital, monkeypatch, capsys):
    folder, _, _ = private_run
    code, printed, _ = command(monkeypatch, capsys, "predict", folder, hospital, "--keep", "hospital", "--keep", "age")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(printed)))
    with hospital.open() as file:
        given = list(csv.DictReader(file))
    assert [(row["hospital"], row["age"]) for row in rows] == [(row["hospital"], row["age"]) for row in given]
    spent = command(monkeypatch, capsys, "privacy", "spent", folder)[1]
    assert {line.split("  ")[0] for line in spent.splitlines()[1:-1]} == {row["hospital"] for row in given}


def test_the_report_shows_the_coefficients_that_are_exported(private_run):
    folder, _, _ = private_run
    model = load_model(folder)
    weights = model.coefficients()[1] - model.coefficients()[0]
    (table,) = view_model(read_folders([folder])[0][0]).tables
    shown = {row["name"]: row["value"] for row in table["rows"]}
    assert shown == pytest.approx({name: weights[model.feature_names.index(name)] for name in shown}, rel=1e-6)


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_read(private_run, hospital, monkeypatch, capsys):
    folder, _, _ = private_run
    code, _, said = command(monkeypatch, capsys, "run", "--data", hospital, "--label", "readmitted", "--out", folder)
    assert code == 2
    assert len(said.splitlines()) == 1
    assert "already holds a run" in said


def test_predict_is_the_test_accuracy_on_the_test_rows(private_run, hospital):
    """The saved model, fed from the file, scores what training measured: schema, map and cut are all in it."""
    folder, _, _ = private_run
    model = load_model(folder)
    own = load_custom(model.config.data)
    table = read_table(hospital)
    features, _ = model.features(table)
    test = {tuple(row) for row in own.dataset.test_features.tolist()}
    encoded = encode(read_schema(SCHEMA), table)
    chosen = [tuple(row) in test for row in encoded.features.tolist()]
    predicted = model.probabilities(features).argmax(axis=1)
    summary = json.loads((folder / "summary.json").read_text())
    # rows of equal features can be both in training and in test: a handful of the 440
    assert np.mean(predicted[chosen] == encoded.labels[chosen]) == pytest.approx(summary["test_accuracy"], abs=0.02)


def test_export_names_features_and_classes_and_scores_like_the_model(private_run, hospital, monkeypatch, capsys):
    folder, _, _ = private_run
    code, printed, _ = command(monkeypatch, capsys, "export", folder)
    assert code == 0
    header, *lines = list(csv.reader(io.StringIO(printed)))
    assert header == ["feature", "no", "yes"]
    assert [line[0] for line in lines] == list(read_schema(SCHEMA).feature_names)
    coefficients = np.array([[float(cell) for cell in line[1:]] for line in lines])
    table = read_table(hospital)
    scores = encode(read_schema(SCHEMA), table).features @ coefficients
    model = load_model(folder)
    np.testing.assert_allclose(scores, model.features(table)[0] @ model.weights.T, atol=1e-4)
    assert np.array_equal(model.weights, read_models(folder)["averaged_model"])  # what the preset releases


def test_the_python_of_the_page_on_own_data_runs():
    (code,) = re.findall(r"```python\n(.*?)```", (HOSPITAL.parent.parent / "docs" / "own-data.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = re.search(r"accuracy (0\.\d+)", done.stdout)
    assert found is not None
    assert float(found[1]) > 0.96


def test_the_schema_of_adult_is_its_code_book():
    rng = np.random.default_rng(0)
    rows = [
        [str(rng.integers(0, 99)) if code[0].isdigit() else str(rng.choice([*code, "?"])) for code in ADULT_COLUMNS.values()]
        for _ in range(50)
    ]
    table = table_from_columns(dict(zip(ADULT_COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))
    encoded = encode(adult_schema(), table, labelled=False)
    np.testing.assert_allclose(encoded.features, encode_adult(rows), atol=1e-7)
    assert not [note for note in encoded.notes if "none of the levels" in note]


def table_config(path: Path, *settings: str, preset: str = "table") -> Config:
    return load_config(preset, [f"data.name={json.dumps(str(path))}", "data.label=readmitted", *settings])


def test_every_client_keeps_its_rows_and_gives_its_share_of_tests(hospital):
    config = table_config(hospital, "data.partition=column", "data.client_column=hospital", "data.test_share=0.25")
    federation = build_federation(config, progress=False)
    assert federation.client_names == ("Aarau", "Bern", "Chur", "Davos", "Esch", "Fribourg")
    assert federation.sizes.tolist() == [315, 458, 195, 135, 262, 285]
    assert len(federation.test_labels) == 550
    assert resolve(config, federation).rounds.participants == 6
    again = build_federation(config, progress=False)
    np.testing.assert_array_equal(federation.features, again.features)
    other = build_federation(table_config(hospital, "data.partition_seed=1"), progress=False)
    assert other.clients == 10  # without a client column the other partitions apply


def test_rows_of_bounded_scaling_have_norm_one_at_most(hospital):
    federation = build_federation(table_config(hospital, "data.standardise=false", "data.scaling=bounded"), progress=False)
    norms = np.linalg.norm(federation.test_features, axis=1)
    assert norms.min() > 0.3
    assert norms.max() <= 1


def test_a_schema_from_private_rows_is_refused_with_the_way_out(hospital):
    with pytest.raises(ConfigError) as error:
        build_federation(table_config(hospital, preset="private-table"), progress=False)
    assert "must not come from the private rows" in str(error.value)
    assert "fedpdm data schema" in str(error.value)
    assert "--schema" in str(error.value)


def test_rows_without_a_label_are_left_out_but_refused_where_their_number_is_published(hospital, tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_text(re.sub(r",(no|yes)$", ",", hospital.read_text(), count=3, flags=re.MULTILINE))
    schema = f"data.schema_file={json.dumps(str(SCHEMA))}"
    federation = build_federation(table_config(path, schema), progress=False)
    assert federation.sizes.sum() + len(federation.test_labels) == 2197
    with pytest.raises(DataError, match=r"3 of \d+ rows have no label in 'readmitted'.* if not, write 'unknown'"):
        build_federation(table_config(path, schema, preset="private-table"), progress=False)


def test_the_schema_that_is_printed_can_be_used(hospital, tmp_path, monkeypatch, capsys):
    flags = ["--label", "readmitted", "--client-column", "hospital"]
    code, printed, _ = command(monkeypatch, capsys, "data", "schema", hospital, *flags)
    assert code == 0
    path = tmp_path / "mine.toml"
    path.write_text(printed)
    assert read_schema(path).client == "hospital"
    config = table_config(hospital, f"data.schema_file={json.dumps(str(path))}", preset="private-table")
    with pytest.raises(ConfigError, match="inferred from the rows"):  # its bounds still come from the rows
        build_federation(config, progress=False)
    lines = [line for line in printed.splitlines() if not line.startswith("from_rows")]
    assert len(lines) == len(printed.splitlines()) - 1
    path.write_text("\n".join(lines))
    assert build_federation(config, progress=False).classes == 2


GOOD = "age,site,ill\n" + "".join(f"{20 + row},{'ab'[row % 2]},{'no' if row % 3 else 'yes'}\n" for row in range(20))
RUN = ["run", "--data", "t.csv", "--label", "ill", "--client-column", "site"]
WRONG = {
    "a wrong column": (GOOD, ["run", "--data", "t.csv", "--label", "il"], ["no label column 'il'", "'ill'"]),
    "a wrong client column": (GOOD, [*RUN[:-1], "sight"], ["no client column 'sight'", "'site'"]),
    "one class only": (GOOD.replace("yes", "no"), RUN, ["single value 'no'", "at least 2 classes"]),
    "the label as client column": (GOOD, [*RUN[:-1], "ill"], ["'ill' is both the label and the client column"]),
    "mixed types": (GOOD + "old,a,no\n", RUN, ["'age'", "row 21 is 'old'", "category"]),
    "an empty file": ("", RUN, ["t.csv is empty"]),
    "a path that does not exist": (None, RUN, ["t.csv does not exist"]),
    "duplicate client names": (GOOD + "55,A,no\n", RUN, ["'a' and 'A'", "case or spaces"]),
    "a negative epsilon": (GOOD, [*RUN, "--epsilon", "-1"], ["privacy.epsilon=-1", "greater than 0"]),
    "no such schema": (GOOD, [*RUN[:3], "--label", "age", "--schema", "no.toml"], ["no.toml does not exist"]),
    "no label": (GOOD, RUN[:3], ["--label", "age, site, ill"]),
    "a share of all": (GOOD, [*RUN, "--test-share", "1.5"], ["data.test_share=1.5", "less than 1"]),
    "no run": (GOOD, ["predict", "nowhere", "t.csv"], ["nowhere holds no run"]),
    "no format": (GOOD, ["export", "nowhere", "--format", "pdf"], ["'pdf'", "csv or onnx"]),
    "a table's key for mnist": (GOOD, ["run", "plain", "--label", "x"], ["data.label=x", "data.name=mnist"]),
    "too many participants": (GOOD, [*RUN, "--set", "rounds.participants=3"], ["rounds.participants=3", "set it to 0"]),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_input_gets_one_helpful_line(mistake, tmp_path, monkeypatch, capsys):
    content, arguments, words = WRONG[mistake]
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "t.csv").write_text(content)
    code, printed, said = command(monkeypatch, capsys, *arguments, *(["--quiet"] if arguments[0] == "run" else []))
    assert code == 2
    assert printed == ""
    assert len(said.strip().splitlines()) == 1, said
    for word in words:
        assert word in said
    assert [path.name for path in tmp_path.iterdir()] == (["t.csv"] if content is not None else [])


def test_labels_as_text_work_and_unseen_categories_in_the_test_file_are_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    people = [f"{20 + row},{'xy'[row % 2]},{'well' if row % 3 else 'ill'}" for row in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["age,ward,state", *people]))
    (tmp_path / "new.csv").write_text("age,ward,state\n30,x,ill\n40,z,well\n")
    flags = ["--data", "t.csv", "--label", "state", "--test", "new.csv", "--set", "data.clients=2", *QUICK, "--out", "r"]
    done = subprocess.run([sys.executable, "-m", "fedpdm.cli.main", "run", *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "label: ill, well" in done.stderr
    assert "test rows: ward: 1 value is none of the levels (z): all of its indicators are 0" in done.stderr
    assert "Test accuracy" in done.stdout
    code, printed, said = command(monkeypatch, capsys, "predict", "r", "new.csv")
    assert code == 0
    assert "ward: 1 value is none of the levels (z)" in said
    assert {line.split(",")[0] for line in printed.splitlines()[1:]} <= {"ill", "well"}


def table_with_small_clients(path, sizes=(30, 12, 1, 1, 3, 1)):
    rng = np.random.default_rng(0)
    clinics = np.repeat([f"clinic {place}" for place in range(len(sizes))], sizes)
    age = rng.integers(20, 80, len(clinics))
    ill = (age + rng.normal(0, 8, len(clinics)) > 50).astype(int)
    path.write_text("age,clinic,ill\n" + "".join(f"{a},{c},{y}\n" for a, c, y in zip(age, clinics, ill, strict=True)))
    return path


def test_clients_with_few_rows_are_kept_or_joined_and_said_in_one_line(tmp_path, capsys):
    name = str(table_with_small_clients(tmp_path / "t.csv"))
    settings = [f"data.name={name}", "data.label=ill", "data.partition=column", "data.client_column=clinic"]
    kept = build_federation(load_config("table", settings))
    assert kept.sizes.tolist() == [24, 10, 1, 1, 2, 1]
    assert capsys.readouterr().err.count("3 of 6 clients have a single row, which is not used for testing") == 1
    joined = build_federation(load_config("table", [*settings, "data.min_rows=5"]))
    assert joined.client_names == ("(small clients)", "clinic 0", "clinic 1")
    assert joined.sizes.tolist() == [5, 24, 10]
    said = capsys.readouterr().err
    assert "4 of 6 clients have fewer than 5 rows: joined into one, '(small clients)', with 6 rows" in said
    table_with_small_clients(tmp_path / "t.csv", sizes=(1, 1, 1, 1))
    with pytest.raises(DataError, match="no client has a row to spare"):
        build_federation(load_config("table", settings), progress=False)


def test_a_client_without_a_labelled_row_is_left_out_and_named(tmp_path, capsys):
    path = table_with_small_clients(tmp_path / "t.csv", sizes=(30, 12, 9))
    path.write_text(re.sub(r"clinic 1,.*", "clinic 1,", path.read_text()))
    settings = [f"data.name={path}", "data.label=ill", "data.partition=column", "data.client_column=clinic"]
    federation = build_federation(load_config("table", settings))
    assert federation.client_names == ("clinic 0", "clinic 2")
    assert federation.sizes.tolist() == [24, 7]
    assert "1 client has no row with a label, left out: clinic 1" in capsys.readouterr().err


def test_a_feature_map_that_is_asked_for_takes_the_place_of_the_preset_s_scaling(tmp_path):
    name = str(table_with_small_clients(tmp_path / "t.csv"))
    config = load_config("table", [f"data.name={name}", "data.label=ill", "data.features=auto"])
    assert config.data.scaling == "none"
    assert build_federation(config, progress=False).features.shape[2] > 4
    with pytest.raises(ConfigError, match="exclude each other"):
        load_config("table", ["data.features=auto", "data.scaling=bounded"])
