"""The kinds of columns in a public schema, and the features that each becomes."""

import math
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["KINDS", "Category", "Column", "Ignored", "Image", "Number", "SchemaPart", "Text", "describe_column"]
__all__ += ["plain_name", "some"]

MOST_VALUES = 500_000  # of one image: height * width * channels


class SchemaPart(BaseModel):
    """A part of a schema: unknown keys are refused, and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Number(SchemaPart):
    """A number: cut to [low, high], then scaled to [0, 1]. A missing one counts as the middle."""

    kind: Literal["number"] = "number"
    low: float
    high: float
    missing_column: bool = False  # a further feature that is 1 if the number is missing

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low={self.low:g} must be below high={self.high:g}")
        return self

    def feature_names(self, name: str) -> Iterator[str]:
        """Return the names of its features."""
        yield plain_name(name)
        if self.missing_column:
            yield f"{plain_name(name)} missing"


class Category(SchemaPart):
    """A word: one feature per level, 1 for this level. A missing word, or another one, has zeros in all of them."""

    kind: Literal["category"] = "category"
    levels: list[str] = Field(min_length=1)
    baseline: str | None = None  # a known level without a feature

    @model_validator(mode="after")
    def _unlike(self) -> Self:
        if len({*self.levels, self.baseline}) < len(self.levels) + 1:
            raise ValueError(f"a level of {[*self.levels, self.baseline]} occurs twice")
        return self

    def feature_names(self, name: str) -> Iterator[str]:
        """Return the names of its features."""
        yield from (f"{plain_name(name)}={level}" for level in self.levels)


class Image(SchemaPart):
    """An image: a feature per pixel and channel, in [0, 1]. Files of another size are resized."""

    kind: Literal["image"] = "image"
    shape: list[Annotated[int, Field(ge=1, le=4096)]] = Field(min_length=2, max_length=3)  # height, width, channels
    white: float = Field(default=255.0, gt=0)  # the value of a white pixel, for arrays; files know it

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if math.prod(self.shape) > MOST_VALUES:
            raise ValueError(f"shape={self.shape} is {math.prod(self.shape)} values, and the limit is {MOST_VALUES}")
        return self

    @property
    def full_shape(self) -> tuple[int, int, int]:
        """Height, width and channels; grey images have 1."""
        height, width, depth = (*self.shape, 1)[:3]
        return height, width, depth

    def feature_names(self, name: str) -> Iterator[str]:
        """Return the names of its features."""
        height, width, depth = self.full_shape
        for row in range(height):
            for column in range(width):
                if depth == 1:
                    yield f"pixel {row},{column}"
                else:
                    yield from (f"pixel {row},{column},{channel}" for channel in range(depth))


class Text(SchemaPart):
    """A text: cut to a number of bytes; a public feature map reads it. A missing one is empty."""

    kind: Literal["text"] = "text"
    length: int = Field(default=500, ge=1, le=100_000)  # bytes of UTF-8

    def feature_names(self, name: str) -> Iterator[str]:
        """Return the names of its features."""
        yield from (f"{plain_name(name)} [byte {place}]" for place in range(self.length))


class Ignored(SchemaPart):
    """A column that the model does not see."""

    kind: Literal["ignored"] = "ignored"

    def feature_names(self, name: str) -> Iterator[str]:
        """Return the names of its features: none."""
        yield from ()


Column = Annotated[Number | Category | Image | Text | Ignored, Field(discriminator="kind")]
KINDS: dict[str, type[SchemaPart]] = {"number": Number, "category": Category, "image": Image, "text": Text, "ignored": Ignored}


def describe_column(column: Number | Category | Image | Text | Ignored) -> str:
    """Return a column in words, for a person to check.

    Parameters
    ----------
    column : Number, Category, Image, Text or Ignored
        The column.

    Returns
    -------
    str
        The words.
    """
    if isinstance(column, Number):
        missing = ", with an indicator of missing ones" if column.missing_column else ""
        return f"number in [{column.low:.9g}, {column.high:.9g}]{missing}"
    if isinstance(column, Category):
        return f"category: {some(column.levels, 10)}"
    if isinstance(column, Image):
        return f"image of {' x '.join(map(str, column.shape))} pixels"
    if isinstance(column, Text):
        return f"text, cut to {column.length} bytes"
    return "ignored"


def plain_name(name: str) -> str:
    """Return a column's name as features have it.

    Parameters
    ----------
    name : str
        The column.

    Returns
    -------
    str
        The name without "=".
    """
    return name.replace("=", ":")  # "=" marks a word's indicators for feature maps


def some(names: list[str], most: int = 5) -> str:
    """Return the first few names as text.

    Parameters
    ----------
    names : list of str
        The names.
    most : int
        How many are shown.

    Returns
    -------
    str
        The names, and the number of the others.
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
