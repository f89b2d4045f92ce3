"""The options of the tables `fedpdm.choices` as fields of the sections."""

from typing import Annotated, Any

from pydantic.fields import FieldInfo

from fedpdm.choices import (
    AGGREGATES,
    ALGORITHMS,
    DIRICHLET_ALPHA,
    FEATURE_MAPS,
    GAMMA,
    LABELS_PER_CLIENT,
    LOSSES,
    PARTITIONS,
    PENALTIES,
    ChoiceTable,
)
from fedpdm.config.names import OneOf, field_of
from fedpdm.config.sections import AlgorithmSection, Config, DataSection, ProblemSection, Section
from fedpdm.errors import ConfigError

__all__ = ["place_options"]

# The places of the tables' options: the section, the key that they follow, and whether their users are named
PLACES: tuple[tuple[type[Section], str, ChoiceTable[Any], bool], ...] = (
    (DataSection, "dirichlet_alpha", PARTITIONS, True),
    (DataSection, "features", FEATURE_MAPS, True),
    (ProblemSection, "loss", LOSSES, True),
    (ProblemSection, "penalty_by", PENALTIES, False),
    (AlgorithmSection, "name", ALGORITHMS, True),
    (AlgorithmSection, "aggregate", AGGREGATES, True),
)
DECLARED = (GAMMA.key, LABELS_PER_CLIENT.key, DIRICHLET_ALPHA.key)  # options with a typed field in the sections' classes
WRITTEN = {section: dict(section.model_fields) for section, *_ in PLACES}  # the fields of the sections' classes


def place_options() -> None:
    """Give the sections a field for every option of the tables, and no others. It runs again when a row is registered."""
    for section, written in WRITTEN.items():
        section.__pydantic_fields__ = _with_options(section, written)
        section.model_rebuild(force=True)
    Config.model_rebuild(force=True)
    for model in Section.__subclasses__():  # models elsewhere that hold a Config, such as a job
        if any(field.annotation is Config for field in model.model_fields.values()):
            model.model_rebuild(force=True)


def _with_options(section: type[Section], written: dict[str, FieldInfo]) -> dict[str, FieldInfo]:
    added = {after: _option_fields(table, named) for home, after, table, named in PLACES if home is section}
    for key in (key for options in added.values() for key in options):
        if key in written and key not in DECLARED:
            raise ConfigError(f"The option {key!r} has the name of another setting in the same section: rename its key.")
    result: dict[str, FieldInfo] = {}
    for key, field in written.items():
        result[key] = field
        result |= {name: option for name, option in added.get(key, {}).items() if name not in written}
    return result


def _option_fields(table: ChoiceTable[Any], named: bool) -> dict[str, FieldInfo]:
    result: dict[str, FieldInfo] = {}
    for key, option in table.options().items():
        kind: Any = Annotated[str, OneOf((option.values,))] if option.values else type(option.default)
        users = ", ".join(table.users(key)) + ": " if named else ""
        result[key] = FieldInfo.from_annotated_attribute(kind, field_of(option, users))
    return result
