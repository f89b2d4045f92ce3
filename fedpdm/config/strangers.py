"""Options of other packages in written settings: only those of a choice that the settings make."""

from typing import TYPE_CHECKING, Any

from fedpdm.choices import AGGREGATES, ALGORITHMS, FEATURE_MAPS, LOSSES, PARTITIONS, PENALTIES, ChoiceTable

if TYPE_CHECKING:
    from fedpdm.config.sections import Config

__all__ = ["without_strangers"]

CHOICES: tuple[tuple[str, str, ChoiceTable[Any]], ...] = (
    ("data", "partition", PARTITIONS),
    ("data", "features", FEATURE_MAPS),
    ("problem", "loss", LOSSES),
    ("problem", "penalty", PENALTIES),
    ("algorithm", "name", ALGORITHMS),
    ("algorithm", "aggregate", AGGREGATES),
)


def without_strangers(config: "Config", values: dict[str, Any]) -> dict[str, Any]:
    """Leave out options of other packages that the settings do not use.

    So a run that does not use such a package can be read without it, and a job has the same digest at a client that has it.

    Parameters
    ----------
    config : Config
        The settings.
    values : dict
        Their plain values, by section. It is changed.

    Returns
    -------
    dict
        The same dictionary.
    """
    for section, key, table in CHOICES:
        part, chosen = values.get(section), getattr(getattr(config, section), key)
        if not isinstance(part, dict):
            continue
        for option in table.options():
            users = table.users(option)
            if chosen not in users and not any(name in table.built_in for name in users):
                part.pop(option, None)
    return values
