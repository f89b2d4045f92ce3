"""Texts are columns too: hashed words cost no privacy, because a text's features depend on that text alone."""

import numpy as np
import pytest

from fedpdm import load_config
from fedpdm.data.encoding import encode
from fedpdm.data.features import check_one_example_at_a_time, make_map
from fedpdm.data.prepare import build_federation, prepare_rows
from fedpdm.data.schema import Number, Schema, Text, parse_schema, to_toml
from fedpdm.data.schema_inference import infer_schema
from fedpdm.data.tables import table_from_columns
from fedpdm.data.texts import texts_of
from fedpdm.errors import ConfigError

TEXTS = ["the room was clean and quiet", "loud, dirty; never again!", "", "café déjà vu 😀 " * 3]
SCHEMA = Schema(label="y", classes=["0", "1"], columns={"note": Text(length=40), "age": Number(low=0, high=100)})


def rows():
    table = table_from_columns({"note": [text or None for text in TEXTS], "age": [10, 20, 30, None], "y": ["0", "1"] * 2})
    return encode(SCHEMA, table)


def test_a_text_is_kept_up_to_its_length():
    found = rows()
    assert texts_of(found.features[:, :40]) == [text.strip().encode()[:40].decode(errors="ignore") for text in TEXTS]
    assert "note: 1 text is cut to 40 bytes" in found.notes
    assert parse_schema(to_toml(SCHEMA)) == SCHEMA


def test_hashed_words_depend_on_one_text_alone():
    names, features = SCHEMA.feature_names, rows().features
    chosen = make_map("auto", names, {"hashed_count": 64})
    assert chosen.name == "hashed"
    check_one_example_at_a_time(chosen, features, names)
    mapped = chosen.rows(features, names)
    assert mapped.shape == (4, len(chosen.names(names)))
    np.testing.assert_allclose(np.linalg.norm(mapped[:, :-1], axis=1), 1, atol=1e-5)


def test_the_same_words_have_the_same_features_in_any_case():
    schema = Schema(label="y", classes=["0", "1"], columns={"note": Text(length=50)})
    table = table_from_columns({"note": ["Good food", "good FOOD", "bad food"]})
    mapped = make_map("hashed", schema.feature_names).rows(encode(schema, table, labelled=False).features, schema.feature_names)
    np.testing.assert_array_equal(mapped[0], mapped[1])
    assert np.abs(mapped[0] - mapped[2]).max() > 0.1


def test_a_column_of_sentences_is_inferred_as_text():
    words = [f"patient {number} came in and went home after {number} days" for number in range(60)]
    schema, _ = infer_schema(table_from_columns({"note": words, "y": ["a", "b"] * 30}), "y")
    assert schema.columns["note"] == Text(length=100)


def test_a_run_that_reads_no_texts_leaves_them_out(tmp_path):
    lines = [f"came in and went home after {number} days,{number % 7},{'ab'[number % 2]}" for number in range(60)]
    (tmp_path / "notes.csv").write_text("note,age,y\n" + "\n".join(lines) + "\n")
    config = load_config("table", [f"data.name={tmp_path / 'notes.csv'}", "data.label=y"])
    federation = build_federation(config, progress=False)
    assert federation.schema.columns["note"].kind == "ignored"
    assert federation.feature_names == ("age", "bias")


@pytest.mark.parametrize("features", ["raw", "piecewise", "fourier"])
def test_a_map_that_does_not_read_texts_is_refused(features):
    config = load_config("plain", [f"data.features={features}"])
    with pytest.raises(ConfigError, match="does not read texts"):
        prepare_rows(config, rows().features, SCHEMA.feature_names)


def test_a_run_learns_from_texts(tmp_path):
    kinds = ["good nice lovely", "bad awful poor"]
    lines = [f"{kinds[number % 2].split()[number % 3]} stay number {number},{number % 2}" for number in range(80)]
    (tmp_path / "notes.csv").write_text("note,y\n" + "\n".join(lines) + "\n")
    schema = Schema(label="y", classes=["0", "1"], columns={"note": Text(length=60)})
    (tmp_path / "s.toml").write_text(to_toml(schema))
    settings = [f"data.name={tmp_path / 'notes.csv'}", f"data.schema_file={tmp_path / 's.toml'}", "data.hashed_count=128"]
    federation = build_federation(load_config("private-mapped", [*settings, "data.clients=2"]), progress=False)
    assert federation.features.shape[2] == 129
