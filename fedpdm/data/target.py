"""A label that is a number or a time: its public bounds, and the scale on which a model learns it."""

__all__ = ["Target"]

import math
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator


class Target(BaseModel):
    """A label that is a number: cut to [low, high], then scaled to [0, 1]. Predictions are in the label's own units.

    With an `event` it is the time from 0 to an event, or to the end of observation if that column says that there was none.
    Times after `high` count as observed until then. The hazard is constant in each of `bands` bands of equal width.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    low: float
    high: float
    event: str | None = None  # the column that says whether the event was seen
    bands: int = Field(default=5, ge=1, le=100)

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low={self.low:g} must be below high={self.high:g}")
        if self.event and self.low:
            raise ValueError(f"low={self.low:g} must be 0 for a time to an event")
        return self

    @property
    def kind(self) -> str:
        """ "number" or "time"."""
        return "time" if self.event else "number"

    @property
    def log_unit(self) -> float:
        """What the logarithm of a prediction or of a hazard grows by when it is brought to the label's own units."""
        return math.log(self.bands / self.high) if self.event else math.log(self.high)

    def scale_times(self, times: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Times as shares of `high`, negative where the event was not seen until then; NaN where a time is missing."""
        shares = np.clip(times / self.high, 1e-6, 1).astype(np.float32)
        return np.where(seen & (times <= self.high), shares, -shares)

    def scale(self, values: np.ndarray) -> np.ndarray:
        """The labels that a model learns, in [0, 1]; NaN where a value is missing."""
        return np.clip((values - self.low) / (self.high - self.low), 0, 1).astype(np.float32)

    def restore(self, scaled: np.ndarray) -> np.ndarray:
        """Labels or predictions in their own units.

        >>> target = Target(low=0, high=20)
        >>> target.restore(target.scale(np.array([5.0, 30.0]))).tolist()
        [5.0, 20.0]
        """
        return self.low + (self.high - self.low) * np.asarray(scaled, np.float64)
