"""The paper's experiments: its figures as data, its claims as checks, and one call that runs and judges them all."""

from fedpdm.studies.paper.reproduce import reproduce

__all__ = ["reproduce"]
