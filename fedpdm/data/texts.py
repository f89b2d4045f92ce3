"""Texts as features: the bytes of a text, each by itself; and hashed n-grams of words, a public map with nothing fitted.

A text is cut to the schema's length in bytes (UTF-8) and becomes one feature per byte, the byte over 255; zeros follow its end.
This form has a fixed width, so everything that holds rows of numbers holds texts too. Feature maps read the text back.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpdm.data.feature_map import FeatureMap, rows_at_norm_one
from fedpdm.data.piecewise import encode_table
from fedpdm.errors import ConfigError, require_extra

__all__ = ["Blocks", "blocks_of", "bytes_of", "encode_blocks", "has_text", "hashed", "texts_of"]

_BYTE = re.compile(r"(.+) \[byte (\d+)\]")


def bytes_of(text: str | None, length: int) -> np.ndarray:
    """Return the bytes of a text as numbers in [0, 1]; zeros follow its end.

    Parameters
    ----------
    text : str or None
        The text; None is empty.
    length : int
        The number of bytes; the rest is cut off.

    Returns
    -------
    ndarray
        [length], float32.

    Examples
    --------
    >>> texts_of(bytes_of("déjà vu", 12)[None]), texts_of(bytes_of("déjà vu", 5)[None])
    (['déjà vu'], ['déj'])
    """
    out = np.zeros(length, np.float32)
    content = np.frombuffer((text or "").replace("\0", " ").encode(errors="replace")[:length], np.uint8)
    out[: len(content)] = content / np.float32(255)
    return out


def texts_of(rows: np.ndarray) -> list[str]:
    """Return the texts of rows of bytes; a character that was cut in two is left out.

    Parameters
    ----------
    rows : ndarray
        [rows, length], as from `bytes_of`.

    Returns
    -------
    list of str
        The texts.
    """
    content = np.clip(np.rint(255 * rows), 0, 255).astype(np.uint8)
    return [row.tobytes().rstrip(b"\0").decode("utf-8", "ignore") for row in content]


class Blocks(NamedTuple):
    """The columns of a table: the places of every text's bytes by the name of its column, and the places of all others."""

    texts: dict[str, list[int]]
    others: list[int]


def blocks_of(feature_names: Sequence[str]) -> Blocks:
    """Find the texts among the columns.

    Parameters
    ----------
    feature_names : sequence of str
        The columns, without the bias.

    Returns
    -------
    Blocks
        Their places.

    Examples
    --------
    >>> blocks_of(["age", "note [byte 0]", "note [byte 1]"])
    Blocks(texts={'note': [1, 2]}, others=[0])
    """
    texts: dict[str, list[int]] = {}
    others = []
    for place, name in enumerate(feature_names):
        if found := _BYTE.fullmatch(name):
            texts.setdefault(found[1], []).append(place)
        else:
            others.append(place)
    return Blocks(texts, others)


def has_text(feature_names: Sequence[str]) -> bool:
    """Tell whether a column is a text, which needs a feature map.

    Parameters
    ----------
    feature_names : sequence of str
        The columns.

    Returns
    -------
    bool
        True if there is one.
    """
    return any(_BYTE.fullmatch(name) for name in feature_names)


def encode_blocks(
    rows: np.ndarray, feature_names: Sequence[str], of_text: Callable[[list[str]], np.ndarray]
) -> tuple[np.ndarray, list[str]]:
    """Map every text of a row by one function, and the other columns by hat functions; each block at norm 1.

    Parameters
    ----------
    rows : ndarray
        [rows, columns].
    feature_names : sequence of str
        The columns, without the bias.
    of_text : callable
        From texts to [texts, m].

    Returns
    -------
    ndarray, list of str
        [rows, features], and the names of the features.
    """
    blocks = blocks_of(feature_names)
    parts, names = [], []
    for name, places in blocks.texts.items():
        parts.append(rows_at_norm_one(of_text(texts_of(rows[:, places])), bias=False))
        names += [f"{name} {index}" for index in range(parts[-1].shape[1])]
    if blocks.others:
        table, more = encode_table(rows[:, blocks.others], [feature_names[place] for place in blocks.others], {}, ())
        parts.append(rows_at_norm_one(np.asarray(table, np.float32), bias=False))
        names += more
    return np.concatenate(parts, axis=1), names


def hashed(*, hashed_count: int, hashed_words: int) -> FeatureMap:
    """Make the hashed n-grams of words (scikit-learn's `HashingVectorizer`), which hold no vocabulary.

    Parameters
    ----------
    hashed_count, hashed_words : int
        The number of places, and the longest group of words.

    Returns
    -------
    FeatureMap
        The map.
    """

    def of_text(texts: list[str]) -> np.ndarray:
        require_extra("sklearn", "sklearn", "data.features=hashed")
        from sklearn.feature_extraction.text import HashingVectorizer

        options: dict[str, Any] = {"norm": None, "dtype": np.float32}  # scikit-learn declares narrower types
        made: Any = HashingVectorizer(n_features=hashed_count, ngram_range=(1, hashed_words), **options)
        counts = made.transform(texts).toarray() if texts else np.zeros((0, hashed_count), np.float32)
        return np.sign(counts) * np.log1p(np.abs(counts))

    def encode(rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
        _require_text(names)
        return encode_blocks(rows, names, of_text)[0]

    def columns(names: Sequence[str]) -> list[str]:
        _require_text(names)
        return encode_blocks(np.zeros((1, len(names)), np.float32), names, of_text)[1]

    sentence = (
        f"Texts: the words and the groups of up to {hashed_words} words, each added to one of {hashed_count} places that a "
        "fixed hash function chooses; the logarithms of the counts. Other columns become hat functions and indicators."
    )
    why = "The hash function is fixed and there is no vocabulary, so nothing comes from any text but the example's own."
    return FeatureMap("hashed", sentence, encode, columns, why=why, key=(hashed_count, hashed_words))


def _require_text(names: Sequence[str]) -> None:
    if not has_text(names):
        raise ConfigError(
            'data.features=hashed is for texts: give a column kind = "text" in the schema, or use scattering (images) or '
            "piecewise (tables)."
        )
