"""Settings: later ones win, what is printed can be read again, and every mistake is told by its key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpdm.config import digest, load_config, preset_names, to_toml
from fedpdm.config.keys import fields, flat, nested, put, remove
from fedpdm.config.sections import Config
from fedpdm.errors import ConfigError


@pytest.mark.parametrize("name", preset_names())
def test_what_is_printed_is_read_as_the_same_settings(name, tmp_path):
    config = load_config(name)
    path = tmp_path / "again.toml"
    path.write_text(to_toml(config))
    again = load_config(str(path))
    assert again == config
    assert digest(again) == digest(config)


def test_later_settings_win_and_an_empty_value_takes_the_presets_away():
    assert load_config("demo", ["rounds.total=5", "rounds.total=7"]).rounds.total == 7
    assert load_config("demo").privacy.clip is not None
    assert load_config("demo", ["privacy.clip="]).privacy.clip == Config.model_fields["privacy"].annotation().clip


def test_settings_with_one_meaning_have_one_digest_and_others_another():
    assert digest(load_config("demo", ["privacy.epsilon=1"])) == digest(load_config("demo", ["privacy.epsilon=1.0"]))
    assert digest(load_config("demo", ["seed=1"])) != digest(load_config("demo", ["seed=2"]))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("rounds.totl=5", ["rounds.totl", "rounds.total"]),
        ("rounds.total=many", ["rounds.total", "many"]),
        ("rounds.total=0", ["rounds.total", "1"]),
        ("algorithm.name=fedadm", ["algorithm.name", "fedadm", "fedavg"]),
        ("rounds", ["rounds", "KEY=VALUE"]),
        ("seed.x=1", ["seed"]),
        ("data.basis_size=0", ["data.basis_size=0: expected greater than or equal to 1 or 'auto'"]),
        ("problem.sparsity=few", ["problem.sparsity='few': expected a valid number or 'noise'"]),
    ],
)
def test_a_mistake_names_the_key_and_the_way_out(setting, words):
    with pytest.raises(ConfigError) as raised:
        load_config("demo", [setting])
    for word in words:
        assert word in str(raised.value)


def test_every_setting_has_a_description():
    """`fedpdm config show` and the completion of the shell print it."""
    missing = [key for key, field in fields(Config) if not field.description]
    assert missing == []


NAMES = st.text("abc", min_size=1, max_size=3)
NESTED = st.recursive(st.integers(), lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=8)


@given(st.dictionaries(NAMES, NESTED, max_size=3))
def test_dotted_keys_are_nested_values(values):
    assert nested(flat(values)) == values


@given(st.dictionaries(NAMES, NESTED, max_size=3), NAMES)
def test_a_key_that_is_put_can_be_removed(values, name):
    expected = {key: value for key, value in values.items() if key != name}
    put(values, name, 1)
    assert values[name] == 1
    remove(values, name)
    assert values == expected
