"""The multiverse: the paper's headline claims under many readings of its silent places."""

from fedpdm.studies.paper.multiverse.study import run_readings

__all__ = ["run_readings"]
