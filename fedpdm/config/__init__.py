"""The settings of an experiment: typed, validated values, to and from TOML."""

from fedpdm.choices import on_change
from fedpdm.config.placing import place_options
from fedpdm.config.reading import digest, load_config, preset_names, to_toml, validate
from fedpdm.config.sections import Config, DataSection, Section

__all__ = ["Config", "DataSection", "Section", "load_config", "preset_names", "validate", "to_toml", "digest"]

on_change(place_options)  # now, and whenever a row is registered
