"""The types of settings that come from the tables of `fedpdm.choices`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedpdm.choices import AGGREGATES, ALGORITHMS, FEATURE_MAPS, LOSSES, PARTITIONS, PENALTIES, SCALINGS, Option, spelled

__all__ = ["OneOf", "AlgorithmName", "AggregateName", "LossName", "PenaltyName", "FeatureMapName", "PartitionName"]
__all__ += ["ScalingName", "field_of"]


@dataclass(frozen=True)
class OneOf:
    """The type of a setting that takes one word of some tables or lists, as they are when it is validated."""

    sources: tuple[Iterable[str], ...]
    refused: tuple[tuple[str, str], ...] = ()  # words that a user may try, and why they are not offered

    def names(self) -> list[str]:
        """List the words."""
        return [name for source in self.sources for name in source]

    def check(self, value: object) -> str:
        """Return the word, or refuse it."""
        if (reason := dict(self.refused).get(str(value))) is not None and value not in self.names():
            raise PydanticCustomError("literal_error", "{reason}", {"reason": reason})
        if not isinstance(value, str) or value not in self.names():
            raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": spelled(self.names())})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)


AlgorithmName = Annotated[str, OneOf((ALGORITHMS,))]
AggregateName = Annotated[str, OneOf((AGGREGATES,))]
COX = (
    "the partial likelihood of Cox is not offered: each of its terms is a sum over all subjects at risk, at all clients, so no "
    "client can compute its part and nothing bounds one subject; use 'piecewise-exponential', which has the same hazard ratios"
)
LossName = Annotated[str, OneOf((LOSSES, ("auto",)), (("cox", COX),))]
PenaltyName = Annotated[str, OneOf((PENALTIES,))]
PartitionName = Annotated[str, OneOf((PARTITIONS, ("column",)))]
ScalingName = Annotated[str, OneOf((("none",), SCALINGS))]
FeatureMapName = Annotated[str, OneOf((FEATURE_MAPS, ("auto",)))]


def field_of(option: Option, users: str = "") -> Any:
    """Make the field of an option.

    Parameters
    ----------
    option : Option
        The option.
    users : str
        A text before its description.

    Returns
    -------
    FieldInfo
        A field of a pydantic model.
    """
    limits: dict[str, Any] = dict(option.limits)
    return Field(default=option.default, description=users + option.description, **limits)
