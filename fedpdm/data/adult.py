"""The public code book of Adult, and its rows as features."""

from collections.abc import Sequence

import numpy as np

from fedpdm.errors import DataError

__all__ = ["ADULT_CLASSES", "ADULT_COLUMNS", "ADULT_FEATURES", "encode_adult"]

ADULT_CLASSES = ("<=50K", ">50K")

# The public code book: bounds of the numbers, levels of the words (the first is dropped), "-" for columns that
# are not used (education-num has the same content as education). Nothing here is fitted to private examples.
_ADULT_CODE_BOOK = """
age 17 90
workclass Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay
fnlwgt -
education -
education-num 1 16
marital-status Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated \
    Widowed
occupation Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners \
    Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support \
    Transport-moving
relationship Husband Not-in-family Other-relative Own-child Unmarried Wife
race Amer-Indian-Eskimo Asian-Pac-Islander Black Other White
sex Female Male
capital-gain 0 99999
capital-loss 0 4356
hours-per-week 1 99
native-country Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France \
    Germany Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy \
    Jamaica Japan Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal \
    Puerto-Rico Scotland South Taiwan Thailand Trinadad&Tobago United-States Vietnam Yugoslavia
"""
ADULT_COLUMNS = {line.split()[0]: line.split()[1:] for line in _ADULT_CODE_BOOK.strip().splitlines()}
ADULT_FEATURES = tuple(
    feature
    for column, code in ADULT_COLUMNS.items()
    if code != ["-"]
    for feature in ([column] if code[0].isdigit() else [f"{column}={level}" for level in code[1:]])
)


def encode_adult(rows: Sequence[Sequence[str]]) -> np.ndarray:
    """Encode rows of Adult's 14 attributes (without the label) as 81 features in [0, 1].

    Numbers are clipped to their public bounds and scaled. Words become indicators of every level but the first; "?" leaves its
    indicators zero.

    Parameters
    ----------
    rows : sequence of sequences of str
        The attributes in the order of the original file.

    Returns
    -------
    ndarray
        [rows, 81], float32.

    Raises
    ------
    DataError
        If a value is neither a number nor a known level; it names the row.
    """
    for index, row in enumerate(rows):
        if len(row) != len(ADULT_COLUMNS):
            raise DataError(f"adult: row {index} has {len(row)} values instead of {len(ADULT_COLUMNS)}; fix it")
    table = np.array(rows, dtype=str).reshape(len(rows), len(ADULT_COLUMNS))
    blocks = []
    for (column, code), values in zip(ADULT_COLUMNS.items(), table.T, strict=True):
        if code == ["-"]:
            continue
        if code[0].isdigit():
            low, high = map(float, code)
            numbers = np.array([_number(value) for value in values.tolist()])
            wrong, expected = np.isnan(numbers), "a number"
            blocks.append(np.clip((numbers[:, None] - low) / (high - low), 0, 1))
        else:
            wrong, expected = ~np.isin(values, [*code, "?"]), f"one of {', '.join(code)}"
            blocks.append(values[:, None] == np.array(code[1:]))
        if wrong.any():
            row = np.argmax(wrong)
            raise DataError(f"adult: row {row}, {column} is {str(values[row])!r}, not {expected}; fix it")
    return np.concatenate(blocks, axis=1, dtype=np.float32)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan
