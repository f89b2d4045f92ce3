"""The names of features tell their column, and hat functions the values at which they stand."""

import numpy as np
import pytest

from fedpdm.config import load_config
from fedpdm.data.features import make_map
from fedpdm.data.names import column_among, columns_of, in_own_units
from fedpdm.data.piecewise import encode_table
from fedpdm.data.schema import Category, Number, Schema, Text
from fedpdm.errors import ConfigError
from fedpdm.runs.thin import Thinner

SCHEMA = Schema(
    label="ill",
    classes=["no", "yes"],
    columns={
        "age=years": Number(low=20, high=70, missing_column=True),
        "trees near roads": Number(low=0, high=10),
        "trees near lakes": Number(low=1e6, high=1e6 + 1),
        "sex": Category(levels=["f"], baseline="m"),
        "ward": Category(levels=["a near b", "c"]),
    },
)
MAPPED = make_map("piecewise", SCHEMA.feature_names).names(SCHEMA.feature_names)


def test_hat_functions_are_named_by_the_values_of_their_column():
    """The function that is named after a value is 1 for a row with that value."""
    names = in_own_units(MAPPED, SCHEMA)
    assert len(set(names)) == len(names), "names stay different, also where the bounds are close"
    assert names[:6] == tuple(f"age:years near {value}" for value in (20, 30, 40, 50, 60, 70))
    scaled = np.zeros((1, len(SCHEMA.feature_names) - 1))
    scaled[0, 0] = (40 - 20) / 50
    encoded, _ = encode_table(scaled, SCHEMA.feature_names[:-1], {}, ())
    assert encoded[0, names.index("age:years near 40")] == pytest.approx(1)
    assert {"sex=(m or other)", "ward=(missing or other)", "ward=c", "bias"} <= set(names)


def test_an_indicator_of_missing_values_has_no_hats_between_its_ends():
    """There is no value between 0 and 1, so such a feature would be noise alone."""
    assert [name for name in MAPPED if "missing" in name] == ["age:years missing near 0", "age:years missing near 1"]
    own = [name for name in in_own_units(MAPPED, SCHEMA) if name.startswith("age:years missing")]
    assert own == ["age:years missing=no", "age:years missing=yes"]


@pytest.mark.parametrize("features", ["raw", "piecewise"])
def test_all_features_of_a_column_stay_or_leave_together(features):
    names = in_own_units(make_map(features, SCHEMA.feature_names).names(SCHEMA.feature_names), SCHEMA)
    found = {column_among(name, columns_of(SCHEMA)) for name in names if name != "bias"}
    assert found == {"age:years", "trees near roads", "trees near lakes", "sex", "ward"}
    config = load_config("table", [f"data.features={features}", "problem.sparsity_by=column", "metrics.path=true"])
    assert Thinner(config, names, 2, SCHEMA).total == 5


def test_slots_of_a_text_belong_to_its_column():
    schema = Schema(label="ill", classes=["no", "yes"], columns={"note": Text(length=9), "room 1": Number(low=0, high=1)})
    found = [column_among(name, columns_of(schema)) for name in ("note 17", "room 1", "room 1 near 0.2")]
    assert found == ["note", "room 1", "room 1"]


@pytest.mark.parametrize("mixed", ["direction 0", "cosine 3"])
def test_features_that_mix_columns_cannot_leave_by_columns(mixed):
    config = load_config("table", ["problem.sparsity_by=column", "metrics.path=true"])
    with pytest.raises(ConfigError, match=f"{mixed}.* does not come from one column"):
        Thinner(config, [mixed, "bias"], 2, SCHEMA)
