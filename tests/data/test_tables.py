"""Own tables: every format gives the same numbers, the schema is public and survives TOML, rows are encoded one by one."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file, load_wine

from fedpdm.data.encoding import as_words, encode
from fedpdm.data.schema import Category, Ignored, Number, Schema, describe, parse_schema, read_schema, to_toml
from fedpdm.data.schema_inference import infer_schema
from fedpdm.data.tables import Table, read_table, table_from_bunch, table_from_columns
from fedpdm.engines.flower.client.rows import read_rows
from fedpdm.errors import DataError

PEOPLE = """age;sex;zip;smoker;note;site;ill
34;f;007;yes;a1;North;no
51;m;008;no;b2;South;yes
?;f;007;NA;c3;South;yes
70;;009;no;d4;North;no
"""


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(PEOPLE)
    return path


def test_a_csv_with_all_kinds_of_columns(people):
    table = read_table(people)
    schema, notes = infer_schema(table, "ill", "site")
    assert schema.columns["age"] == Number(low=34, high=70, missing_column=True)
    assert schema.columns["sex"] == Category(levels=["f", "m"])
    assert schema.columns["zip"] == Category(levels=["007", "008", "009"])
    assert schema.classes == ["no", "yes"]
    assert notes == ()
    rows = encode(schema, table)
    named = dict(zip(schema.feature_names, rows.features.T.tolist(), strict=True))
    assert named["age"] == pytest.approx([0, 17 / 36, 0.5, 1])
    assert named["age missing"] == [0, 0, 1, 0]
    assert named["sex=f"] == [1, 0, 1, 0]
    assert named["sex=m"] == [0, 1, 0, 0]
    assert named["bias"] == [1, 1, 1, 1]
    assert rows.labels.tolist() == [0, 1, 1, 0]
    assert [rows.clients.names[place] for place in rows.clients.places] == ["North", "South", "South", "North"]
    assert any("age: 1 missing value stands at the middle of the bounds, 52" in note for note in rows.notes)
    assert "number in [34, 70]" in describe(schema)


def formats(tmp_path, x: np.ndarray, y: np.ndarray) -> list[Table]:
    """The same rows in every format, with columns x1, x2, ... and label."""
    names = [f"x{column + 1}" for column in range(x.shape[1])]
    frame = pl.DataFrame({**dict(zip(names, x.T, strict=True)), "label": y})
    frame.write_csv(tmp_path / "t.csv")
    frame.write_csv(tmp_path / "t.tsv", separator="\t")
    frame.write_parquet(tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", X=x, label=y, feature_names=np.array(names))
    dump_svmlight_file(x, y, str(tmp_path / "t.svm"), zero_based=False)
    tables = [read_table(tmp_path / f"t.{ending}") for ending in ("csv", "tsv", "parquet", "npz", "svm")]
    return [*tables, table_from_columns(frame.to_dict(as_series=False))]


def test_every_format_gives_the_same_features_labels_and_schema(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)).round(3), rng.integers(0, 3, 30)
    first, *others = [(infer_schema(table, "label").schema, table) for table in formats(tmp_path, x, y)]
    expected = encode(*first)
    assert expected.features.shape == (30, 5)
    for schema, table in others:
        assert schema.classes == first[0].classes == ["0", "1", "2"]
        found = encode(first[0], table)
        np.testing.assert_array_equal(found.features, expected.features)
        np.testing.assert_array_equal(found.labels, expected.labels)
        assert set(schema.columns) == set(first[0].columns)


def test_libsvm_files_of_another_width_are_filled_with_zeros(tmp_path):
    (tmp_path / "wide.svm").write_text("1 1:0.5 3:2\n-1 2:4\n")
    (tmp_path / "narrow.svm").write_text("1 1:0.25\n")
    schema = infer_schema(read_table(tmp_path / "wide.svm"), "label").schema
    assert schema.classes == ["-1", "1"]
    assert encode(schema, read_table(tmp_path / "narrow.svm")).features.tolist() == [[0.5, 0, 0, 1]]


def test_bunches_of_scikit_learn_keep_the_names_of_features_and_classes():
    wine = load_wine()
    schema = infer_schema(table_from_bunch(wine), "target").schema
    assert schema.classes == ["class_0", "class_1", "class_2"]
    assert list(schema.columns) == list(wine.feature_names)
    assert infer_schema(read_table("sklearn:wine"), "target").schema == schema


words = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8)
bounds = st.tuples(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9)).map(lambda b: (b[0], b[0] + b[1] * (1 + abs(b[0]))))
columns = st.one_of(
    st.builds(lambda b, m: Number(low=b[0], high=b[1], missing_column=m), bounds, st.booleans()),
    st.builds(lambda levels: Category(levels=levels), st.lists(words, min_size=1, max_size=4, unique=True)),
    st.just(Ignored()),
)
schemas = st.builds(
    lambda parts, classes, client, bias: Schema(label="the label", classes=classes, client=client, bias=bias, columns=parts),
    st.dictionaries(words, columns, min_size=1, max_size=4),
    st.lists(words, min_size=2, max_size=4, unique=True),
    st.sampled_from([None, "the client"]),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(schemas)
def test_a_schema_survives_toml(schema):
    assert parse_schema(to_toml(schema, "two\nlines")) == schema


cells = st.sampled_from(["", "f", "m", "x"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.one_of(st.none(), st.floats(-300, 300)), cells), min_size=2, max_size=12))
def test_a_row_s_features_do_not_depend_on_the_other_rows_and_stay_in_the_unit_interval(rows):
    parts = {"age": Number(low=-10, high=100, missing_column=True), "sex": Category(levels=["f", "m"])}
    schema = Schema(label="y", classes=["0", "1"], columns=parts)

    def features(some):
        return encode(schema, table_from_columns({"age": [r[0] for r in some], "sex": [r[1] for r in some]}), False).features

    together = features(rows)
    alone = np.concatenate([features([row]) for row in rows])
    np.testing.assert_array_equal(together, alone)
    assert together.min() >= 0
    assert together.max() <= 1


def test_what_does_not_fit_is_counted_and_said():
    schema = Schema(
        label="y",
        classes=["no", "yes"],
        columns={"age": Number(low=0, high=100), "sex": Category(levels=["f", "m"])},
    )
    table = table_from_columns(
        {
            "age": [130, -1, None, 50],
            "sex": ["f", "other", None, "unknown"],
            "y": ["no", "yes", "no", None],
            "extra": [1, 2, 3, 4],
        }
    )
    rows = encode(schema, table)
    assert rows.labels.tolist() == [0, 1, 0]
    assert rows.notes == (
        "age: 2 values outside [0, 100] are cut to it",
        "age: 1 missing value stands at the middle of the bounds, 50",
        "sex: 2 values are none of the levels (other, unknown): all of their indicators are 0",
        "sex: 1 missing value is encoded as 0 in every indicator",
        "1 column not in the schema, left out: extra",
        "y: 1 row without a label is left out",
    )


def test_constants_and_names_are_ignored_and_said():
    rows = 51
    columns = {"id": [f"p{row}" for row in range(rows)], "one": [1] * rows, "x": [row % 9 for row in range(rows)]}
    schema, notes = infer_schema(table_from_columns({**columns, "y": [0, *[1] * (rows - 1)]}), "y")
    assert schema.columns["id"] == schema.columns["one"] == Ignored()
    assert notes == (
        "one: ignored, because it is 1 in every row",
        "left out, as it looks like an id or a name: id (51 different words) (to keep one, write it into a schema)",
    )


def test_words_that_occur_often_are_levels_even_among_numbers():
    """Sixty states are a category if each has many rows; so are "1", "2-10" and "more", of which most rows are a number."""
    rows = 600
    columns = {
        "state": [f"s{row % 60}" for row in range(rows)],
        "birds": [("1", "1", "2-10", "1", "more")[row % 5] for row in range(rows)],
    }
    schema, notes = infer_schema(table_from_columns({**columns, "y": [row % 2 for row in range(rows)]}), "y")
    assert [len(schema.columns[name].levels) for name in columns] == [60, 3]
    (note,) = notes
    assert note.startswith("birds: a category, because some of its 3 different values are no numbers, such as ")


def test_wide_letters_do_not_shift_the_lines_of_a_schema():
    columns = {"\U0001f6ec effect": Number(low=0, high=1), "plain name": Number(low=0, high=1)}
    first, second = describe(Schema(label="y", classes=["a", "b"], columns=columns)).splitlines()[1:]
    assert first.index("number") + 1 == second.index("number")  # an emoji takes two cells


MISTAKES = {
    "no such column": ("a,b\n1,2\n3,4\n", {"label": "c"}, "has no label column 'c': its columns are 'a', 'b'"),
    "nearest column": ("age,income\n1,2\n3,4\n", {"label": "Incom"}, "the nearest is 'income'"),
    "client column": ("age,y,hospital\n1,2,a\n3,4,b\n", {"label": "y", "client": "hospitl"}, "the nearest is 'hospital'"),
    "one class": ("a,y\n1,2\n3,2\n", {"label": "y"}, "the single value '2'"),
    "mixed types": (
        "age,y\n" + "".join(f"{age},ab\n{age},c\n" for age in range(21)) + "unknown,c\n",
        {"label": "y"},
        "row 43 is 'unknown', which is not a number",
    ),
    "empty file": ("", {"label": "y"}, "is empty"),
    "no rows": ("a,y\n", {"label": "y"}, "has no rows"),
    "two of one name": ("a,a,y\n1,2,3\n", {"label": "y"}, "two columns have the name 'a'"),
    "ragged": ("a,y\n1,2\n3,4,5\n", {"label": "y"}, "line 3 has 3 fields, but the line of column names has 2"),
    "nothing to learn from": ("y,a\n0,1\n1,1\n", {"label": "y"}, "no column to learn from"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_broken_table_is_said_in_one_line(mistake, tmp_path):
    content, arguments, words = MISTAKES[mistake]
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(DataError) as error:
        infer_schema(read_table(path), **arguments)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nowhere.csv", None, "does not exist"),
        ("t.xlsx", b"x", "the ending '.xlsx' is not known"),
        ("t.parquet", b"not parquet", "is not a valid .parquet file"),
        ("t.npz", b"not an archive", "is not a valid .npz file"),
        ("t.svm", b"a b c", "is not a valid .svm file"),
        ("sklearn:irs", None, "sklearn:iris"),
    ],
)
def test_a_file_that_is_not_what_its_name_says(tmp_path, name, content, words):
    path = tmp_path / name
    if content:
        path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_table(name if name.startswith("sklearn:") else path)
    assert words in str(error.value)


def test_clients_that_differ_in_case_only_and_labels_that_are_no_class(people):
    people.write_text(PEOPLE.replace("South;yes\n?", "north ;yes\n?"))
    table = read_table(people)
    with pytest.raises(DataError, match="'North' and 'north'"):
        encode(infer_schema(table, "ill", "site").schema, table)
    stated = Schema(label="ill", classes=["no", "maybe"], columns={"zip": Ignored()})
    with pytest.raises(DataError, match="row 2 has the label 'yes'"):
        encode(stated, table)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("label = 'y'\nclasses = ['a']\n[columns.x]\nkind = 'ignored'", "classes"),
        ("label = 'y'\nclasses = ['a', 'b']\n[columns.x]\nkind = 'number'\nlow = 2\nhigh = 1", "low=2 must be below high=1"),
        ("label = 'y'\nclasses = ['a', 'b']\n[columns.x]\nkind = 'number'\nlo = 2\nhigh = 1", "columns.x"),
        ("label = 'y'\nclasses = ['a', 'b']\n[columns.y]\nkind = 'ignored'", "must not be among"),
        ("label = ", "not valid TOML"),
    ],
)
def test_a_broken_schema_is_said_in_one_line(text, words, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_schema(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_row_in_another_encoding_changes_no_other_row(tmp_path):
    rows = ["town,ill", "Málaga,no", "Köln,yes"]
    (tmp_path / "one.csv").write_bytes("\n".join(rows).encode())
    (tmp_path / "more.csv").write_bytes("\n".join(rows).encode() + "\nZürich,no".encode("latin-1"))
    towns = [read_table(tmp_path / name).columns["town"].to_list() for name in ("one.csv", "more.csv")]
    assert towns == [["Málaga", "Köln"], ["Málaga", "Köln", "Zürich"]]


def test_none_is_an_answer_among_words_and_missing_among_numbers():
    table = table_from_columns(
        {"cover": ["none", "public", "NA", "none"], "dose": ["none", "2.5", "3", "NULL"], "y": ["none", "a", "a", "none"]}
    )
    schema, _ = infer_schema(table, "y")
    assert schema.classes == ["a", "none"]
    assert schema.columns["cover"] == Category(levels=["none", "public"])
    assert schema.columns["dose"] == Number(low=2.5, high=3, missing_column=True)
    rows = encode(schema, table)
    assert rows.features[:, :2].tolist() == [[1, 0], [0, 1], [0, 0], [1, 0]]  # cover
    assert rows.features[:, 2:4].tolist() == [[0.5, 1], [0, 0], [1, 0], [0.5, 1]]  # dose, and whether it is missing
    assert rows.labels.tolist() == [1, 0, 0, 1]


def test_a_declared_level_is_never_missing():
    table = table_from_columns({"region": ["NA", "EU", "?"], "y": ["null", "1", "1"]})
    schema = Schema(label="y", classes=["null", "1"], bias=False, columns={"region": Category(levels=["NA", "EU"])})
    rows = encode(schema, table)
    assert rows.features.tolist() == [[1, 0], [0, 1], [0, 0]]
    assert rows.labels.tolist() == [0, 1, 1]
    assert rows.notes == ("region: 1 missing value is encoded as 0 in every indicator",)


@pytest.mark.parametrize(("separator", "kind"), [(";", Number), ("\t", Number), (",", Category)])
def test_a_decimal_comma_is_one_where_commas_do_not_separate(tmp_path, separator, kind):
    path = tmp_path / "t.csv"
    path.write_text(separator.join(["a", "y"]) + "\n" + "".join(f'"{k},5"{separator}{k % 2}\n' for k in range(4)))
    column = infer_schema(read_table(path), "y").schema.columns["a"]
    assert isinstance(column, kind)
    if isinstance(column, Number):
        assert (column.low, column.high) == (0.5, 3.5)


def test_ids_and_names_are_left_out_in_one_line_and_amounts_are_not():
    rng = np.random.default_rng(0)
    rows = 400
    left_out = {
        "case": np.arange(1000, 1000 + rows),
        "patient_id": rng.integers(1, 300, rows),
        "Beleg Nr.": rng.integers(1, 5000, rows),
        "insured": rng.integers(10**7, 10**8, rows),
        "surname": np.array([f"name {row}" for row in range(rows)]),
        "": 7 * np.arange(rows) % (5 * rows),  # numbers of rows that were drawn from a larger table
        "index": 7 * np.arange(rows) % (5 * rows),
    }
    kept = {
        "age": rng.integers(18, 99, rows),
        "income": rng.lognormal(10, 1, rows).round(),
        "platelets": rng.normal(250_000, 60_000, rows).round(),
        "notice": rng.integers(1, 200, rows),
        "number of cigarettes": rng.integers(0, 100, rows),
        "grade no": rng.integers(1, 6, rows),
        "body mass index": rng.integers(15, 90, rows),
    }
    admitted = np.array([20230100 + 1 + row % 28 for row in range(rows)])
    table = table_from_columns({**left_out, **kept, "admitted": admitted, "y": np.arange(rows) % 2})
    schema, notes = infer_schema(table, "y")
    assert [name for name, column in schema.columns.items() if isinstance(column, Ignored)] == list(left_out)
    assert [note.partition(":")[0] for note in notes] == ["admitted", "left out, as they look like ids or names"]
    assert "dates" in notes[0]
    assert all(name in notes[1] for name in left_out)
    assert "a column without a name" in notes[1]
    assert "  (no name) " in describe(schema)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_encodings_and_emoji_in_the_header(tmp_path, encoding):
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / "t.csv").write_bytes((mark + "größe;😀 mood;ill\n1,5;gut;no\n2,5;schön;yes\n").encode(encoding))
    table = read_table(tmp_path / "t.csv")
    assert list(table.columns) == ["größe", "😀 mood", "ill"]
    schema = infer_schema(table, "ill").schema
    assert schema.columns["größe"] == Number(low=1.5, high=2.5)
    assert parse_schema(to_toml(schema)) == schema


@given(st.lists(st.one_of(st.integers(-(10**15), 10**15).map(str), st.decimals(-999, 999, places=4).map(str)), min_size=1))
@settings(max_examples=60, deadline=None)
def test_numbers_are_words_as_they_were_written(tmp_path_factory, words):
    path = tmp_path_factory.getbasetemp() / "words.csv"
    path.write_text("\n".join(["a", *words]) + "\n")
    assert as_words(read_table(path).column("a")).to_list() == words


def test_a_column_that_tells_the_label_is_named():
    label, codes = ["yes", "no", "no", "no"] * 30, [100 + row // 2 for row in range(120)]
    columns = {"cured": [f"since {word}" for word in label], "age": range(20, 140), "politycode": codes, "ill": label}
    schema, notes = infer_schema(table_from_columns({name: list(values) for name, values in columns.items()}), "ill")
    assert schema.columns["politycode"] == Ignored()
    assert [note for note in notes if "alone" in note] == [
        'cured tells ill alone in every row; if it would not be known beforehand, write kind = "ignored" in a schema'
    ]


def test_one_column_in_two_roles_is_refused(people):
    table = read_table(people)
    with pytest.raises(DataError, match="'site' is both the label and the client column"):
        infer_schema(table, "site", "site")
    with pytest.raises(DataError, match="'site' is both the client column and the unit column"):
        infer_schema(table, "ill", "site", "site")
    with pytest.raises(DataError, match="different columns"):
        parse_schema("label = 'y'\nclasses = ['a', 'b']\nclient = 'y'\n[columns.x]\nkind = 'ignored'")


def test_a_schema_that_was_read_off_rows_says_so_when_it_is_written():
    schema = infer_schema(table_from_columns({"a": [1.0, 2.0], "y": ["0", "1"]}), "y").schema
    assert schema.from_rows
    assert parse_schema(to_toml(schema)) == schema
    assert not parse_schema(to_toml(schema.model_copy(update={"from_rows": False}))).from_rows


LONG = [str(2**60), str(2**60 + 1), str(2**53), str(2**53 + 1)]  # a float64 holds neither of the two pairs apart


def test_long_ids_stay_different_persons_in_every_format(tmp_path):
    ids = [int(word) for word in LONG]
    frame = pl.DataFrame({"id": ids, "x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1]})
    frame.write_parquet(tmp_path / "whole.parquet")
    frame.with_columns(pl.col("id").cast(pl.Decimal(30, 2))).write_parquet(tmp_path / "decimal.parquet")
    frame.write_csv(tmp_path / "t.csv")
    np.savez(tmp_path / "t.npz", id=np.array(ids), x=frame["x"].to_numpy(), y=frame["y"].to_numpy())
    tables = [read_table(tmp_path / name) for name in ("whole.parquet", "decimal.parquet", "t.csv", "t.npz")]
    tables.append(table_from_columns({"id": ids, "x": frame["x"].to_list(), "y": frame["y"].to_list()}))
    schema = Schema(label="y", classes=["0", "1"], unit_column="id", columns={"x": Number(low=0, high=4)})
    for table in tables:
        assert as_words(table.column("id")).to_list() == LONG
        assert len(np.unique(encode(schema, table).units)) == 4
    for path in ("whole.parquet", "decimal.parquet", "t.csv", "t.npz"):
        assert read_rows(tmp_path / path, schema).units == tuple(LONG)


def test_a_number_column_of_a_csv_is_float64_and_still_knows_how_it_was_written(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("code,x,y\n250.0,1.0,0\n250.10,2,1.5\n,1e3,-3\n")
    table = read_table(path)
    assert table.unwritten is not None
    assert set(table.unwritten) == {"code", "x"}  # the numbers of y are written in one way: the file is not read again for them
    assert table.columns["code"].dtype == pl.Float64
    assert table.column("code", numbers=True).to_list() == [250.0, 250.1, None]
    assert as_words(table.column("code")).to_list() == ["250.0", "250.10", None]
    assert as_words(table.column("x")).to_list() == ["1.0", "2", "1e3"]
    assert as_words(table.column("y")).to_list() == ["0", "1.5", "-3"]


def test_a_consumed_table_gives_the_same_rows_and_is_empty_of_features_after(people):
    schema = infer_schema(read_table(people), "ill", "site").schema
    table = read_table(people)
    consumed = encode(schema, table, consume=True)
    wanted = encode(schema, read_table(people))
    np.testing.assert_array_equal(consumed.features, wanted.features)
    assert consumed.notes == wanted.notes
    assert not set(table.columns) & set(schema.columns)


def test_a_column_may_have_any_name():
    table = table_from_columns({"rows": ["a", "b", "a"], "cell": ["c", "d", "d"], "count": [1, 2, 3], "y": [0, 1, 0]})
    schema = infer_schema(table, "y").schema
    assert schema.columns["rows"] == Category(levels=["a", "b"])
    assert schema.columns["cell"] == Category(levels=["c", "d"])


def test_dates_and_numbers_of_patients_are_no_features():
    rows = 60
    days = [f"2007-11-{1 + row % 28:02d}" for row in range(rows)]
    columns = {"pidnum": [10_056 + 137 * row**2 for row in range(rows)], "egg": days, "seen": ["3.4.2021", "4.4.21"] * 30}
    table = table_from_columns(columns | {"": range(1, rows + 1), "x": [row % 7 for row in range(rows)], "y": [0, 1] * 30})
    schema, notes = infer_schema(table, "y")
    assert [name for name, column in schema.columns.items() if not isinstance(column, Ignored)] == ["x"]
    assert "pidnum (60 different numbers), a column without a name (60 different numbers)" in notes[-1]
    assert sum("holds dates" in note for note in notes) == 2
