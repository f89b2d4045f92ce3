"""Conditions between settings: each refuses a combination by name, with the way out."""

from typing import TYPE_CHECKING

from fedpdm.choices import FEATURE_MAPS, PENALTIES, is_table
from fedpdm.choices.words import PRIVATE_BASIS
from fedpdm.config.exact import check_exact

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fedpdm.config.sections import Config, DataSection, Section

__all__ = ["check_config", "check_data"]

# Settings for the user's own tables only
TABLE_KEYS = ("label", "client_column", "schema_file", "test_share", "test_file", "unit_column", "event_column", "min_rows")

SOUND_KEYS = ("unit", "relation", "mode", "standard_share", "interval_share", "defaults", "participations", "trust")
SOUND_KEYS += ("clients_per_unit",)

# Settings that a mechanism ignores must not be set: a user could believe that they count.
UNUSED_PRIVACY_KEYS: dict[str, tuple[str, ...]] = {
    "none": ("epsilon", "clip", *SOUND_KEYS),
    "paper": SOUND_KEYS,
    "sound": (),
}


def check_data(data: "DataSection") -> None:
    """Refuse settings of [data] that exclude each other.

    Parameters
    ----------
    data : DataSection
        The section.
    """
    _check_table(data)
    _check_features(data)


def check_config(config: "Config") -> None:
    """Refuse settings of different sections that exclude each other.

    Parameters
    ----------
    config : Config
        The settings.
    """
    _check_cohorts(config)
    _check_participants(config)
    _check_privacy(config)
    check_exact(config)
    _check_penalty(config)
    _check_sparsity(config)
    _check_attack(config)


def _changed(section: "Section", keys: "Iterable[str]") -> list[str]:
    """Return the keys of a section whose values are not their defaults."""
    return [key for key in keys if getattr(section, key) != type(section).model_fields[key].default]


def _check_table(data: "DataSection") -> None:
    if not is_table(data.name):
        for key in TABLE_KEYS:
            if (value := getattr(data, key)) is not None:
                raise ValueError(f"data.{key}={value} is for your own table, but data.name={data.name} is not a table")
        if data.partition == "column":
            raise ValueError(f'data.partition="column" is for your own table, but data.name={data.name} is not a table')
    if data.test_share is not None and data.test_file is not None:
        raise ValueError(f"data.test_share={data.test_share} and data.test_file={data.test_file} exclude each other")
    if data.client_column is not None and data.partition != "column":
        raise ValueError(
            f"data.client_column={data.client_column} has no effect with data.partition={data.partition}: "
            "set data.partition=column"
        )


def _check_features(data: "DataSection") -> None:
    if data.features != "raw" and data.scaling != "none":
        raise ValueError(
            f"data.scaling={data.scaling} and data.features={data.features} exclude each other, because the map scales "
            "examples to norm 1: remove one of the two (--set data.scaling=)"
        )
    if data.basis == PRIVATE_BASIS and (data.standardise or data.radius not in (None, 1.0)):
        raise ValueError(
            f'data.basis="private" excludes data.standardise=true, and needs data.radius=1.0 or none, not {data.radius}: '
            "remove the basis or these"
        )
    if data.features == "raw" and data.basis not in ("none", "auto", PRIVATE_BASIS):
        raise ValueError(f"data.basis={data.basis} needs a feature map: set data.features, for instance to auto")
    if data.standardise and (data.scaling != "none" or data.radius is not None):
        raise ValueError(
            f"data.standardise=true scales by itself: remove data.scaling={data.scaling} and data.radius={data.radius} "
            "(--set data.scaling= --set data.radius=)"
        )
    for key, option in FEATURE_MAPS.options().items():
        value, users = getattr(data, key, option.default), FEATURE_MAPS.users(key)
        if data.features not in (*users, "auto") and value != option.default:
            raise ValueError(
                f"data.{key}={value} has no effect with data.features={data.features}: set data.features={users[0]}"
            )


def _check_cohorts(config: "Config") -> None:
    cohorts = config.cohorts
    for key in _changed(cohorts, type(cohorts).model_fields) if config.privacy.trust != "cohorts" else ():
        raise ValueError(
            f"cohorts.{key}={getattr(cohorts, key)} has no effect with privacy.trust={config.privacy.trust}: set "
            "privacy.trust=cohorts"
        )
    if config.cohorts.scale & (config.cohorts.scale - 1):
        raise ValueError(f"cohorts.scale={config.cohorts.scale} is not a power of two: set 0, or for instance {2**20}")


def _check_participants(config: "Config") -> None:
    if config.data.partition != "column" and config.rounds.participants > config.data.clients:
        raise ValueError(
            f"rounds.participants={config.rounds.participants} is more than data.clients={config.data.clients}: "
            "lower the one or raise the other"
        )


def _check_privacy(config: "Config") -> None:
    for key in _changed(config.privacy, UNUSED_PRIVACY_KEYS[config.privacy.mechanism]):
        raise ValueError(
            f'privacy.{key}={getattr(config.privacy, key)} has no effect with privacy.mechanism="{config.privacy.mechanism}": '
            f"remove it (--set privacy.{key}=)"
        )
    if config.privacy.mechanism == "sound" and config.problem.class_weights == "balanced":
        raise ValueError(
            'problem.class_weights="balanced" counts the classes of private rows, which privacy.mechanism="sound" does not '
            "cover: give weights that are known without them, for instance problem.class_weights=[0.1, 1.0]"
        )
    if config.privacy.mechanism == "sound" and isinstance(config.metrics.threshold, str):
        raise ValueError(
            f'metrics.threshold="{config.metrics.threshold}" is chosen on private rows, which privacy.mechanism="sound" does '
            "not cover: give a number that is known without them, for instance metrics.threshold=0.1"
        )
    if config.privacy.mechanism != "none" and config.privacy.epsilon is None:
        raise ValueError(
            f'privacy.mechanism="{config.privacy.mechanism}" needs a budget: set privacy.epsilon, for instance 1.0'
        )
    if config.privacy.mechanism == "sound" and config.compression.kind == "topk" and config.compression.uplink < 1:
        raise ValueError(
            'compression.kind="topk" chooses coordinates by values that are not noised, so the indices themselves reveal '
            'the data, which privacy.mechanism="sound" does not allow: use "shared-randk" (no indices on the wire), '
            '"public-topk", "noisy-topk" or "randk"'
        )


def _check_penalty(config: "Config") -> None:
    if config.problem.penalty_by == "subgradient" and not PENALTIES.row(config.problem.penalty).subgradient:
        fit = [row.name for row in PENALTIES.values() if row.subgradient]
        raise ValueError(
            f'problem.penalty_by="subgradient" needs a slope everywhere, which problem.penalty="{config.problem.penalty}" '
            f'does not have: use "prox", or one of {", ".join(fit)}'
        )


def _check_sparsity(config: "Config") -> None:
    problem = config.problem
    if problem.sparsity_by != "weight" and problem.sparsity is None and not config.metrics.path:
        raise ValueError(f"problem.sparsity_by={problem.sparsity_by} has no effect without problem.sparsity or metrics.path")
    if config.data.basis == PRIVATE_BASIS and (config.metrics.intervals or config.privacy.mechanism == "paper"):
        raise ValueError(
            'data.basis="private" goes neither with metrics.intervals=true, whose coefficients it mixes, nor with '
            'privacy.mechanism="paper", which does not cover it: remove the basis or these'
        )
    needs = config.privacy.mechanism == "sound" and problem.sparsity_by == "weight" and config.data.basis != PRIVATE_BASIS
    if problem.sparsity == "noise" and not needs:
        raise ValueError(
            'problem.sparsity="noise" compares single weights with their noise: it needs privacy.mechanism="sound", '
            'problem.sparsity_by="weight" and no private basis; set a share or a number instead'
        )
    if problem.sparsity is not None and config.metrics.intervals:
        raise ValueError(
            f"problem.sparsity={problem.sparsity} and metrics.intervals=true exclude each other, because intervals are for "
            "the model with all weights: remove one of the two"
        )


def _check_attack(config: "Config") -> None:
    a = config.attack
    if (a.kind == "none") != (a.clients == 0):
        raise ValueError(f"attack.kind={a.kind} and attack.clients={a.clients} belong together: set both, or neither")
    if config.data.partition != "column" and a.clients > config.data.clients:
        raise ValueError(f"attack.clients={a.clients} is more than data.clients={config.data.clients}: lower it")
    if a.kind == "missing-noise" and config.privacy.mechanism != "sound":
        raise ValueError('attack.kind="missing-noise" needs noise that can be missing: set privacy.mechanism="sound"')
    if a.kind in ("missing-noise", "strongest") and config.privacy.trust == "cohorts":
        raise ValueError(f"attack.kind={a.kind} is about messages that are seen one by one: set privacy.trust=local")
