"""Images as one column of a table: decoded, brought to the schema's size, and scaled to [0, 1], each by itself.

A column of images holds the content of PNG or JPEG files (bytes), their paths (words), or pixels (an array per row). The
schema's shape decides the size; nothing is fitted.
"""

import hashlib
import io
import math
import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpdm.data.limits import require_memory
from fedpdm.errors import DataError, require_extra

if TYPE_CHECKING:
    import polars

__all__ = ["FOLDER_COLUMNS", "decode", "decoded_shape", "holds_pixels", "image_column", "image_content"]
__all__ += ["image_files", "image_paths", "is_image_column", "names_images", "pixels_of", "read_folder", "rows_of_images"]

ENDINGS = (".png", ".jpg", ".jpeg")
SIGNATURES = (b"\x89PNG", b"\xff\xd8\xff")
MOST_PIXELS = 50_000_000  # of one image file; its header says how many there are
MOST_BYTES = 100_000_000  # of one image file
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # how Pillow names channels
FOLDER_COLUMNS = ("client", "label")  # names of the folder levels above the images


def holds_pixels(series: "polars.Series") -> bool:
    """Tell whether every cell of a column is an array of pixels.

    Parameters
    ----------
    series : polars.Series
        A column.

    Returns
    -------
    bool
        True for pixels.
    """
    import polars as pl

    return isinstance(series.dtype, pl.Array)


def image_column(series: "polars.Series") -> "polars.Series | None":
    """Return the images of a column: arrays, contents of files, or pairs of bytes and path, as Hugging Face writes them.

    Parameters
    ----------
    series : polars.Series
        A column of any type.

    Returns
    -------
    polars.Series or None
        Pixels or contents; None if the column holds something else. Bytes that do not begin like an image may be words.
    """
    import polars as pl

    if isinstance(series.dtype, pl.Struct):
        fields = {field.name for field in series.dtype.fields}
        return image_column(series.struct.field("bytes").alias(series.name)) if "bytes" in fields else None
    if holds_pixels(series):
        return series
    if series.dtype != pl.Binary:
        return None
    first = next((content for content in series if content is not None), b"")
    return series if first.startswith(SIGNATURES) else None


def is_image_column(series: "polars.Series") -> bool:
    """Tell whether a column of a table holds images; a column of paths holds words.

    Parameters
    ----------
    series : polars.Series
        A column of a table.

    Returns
    -------
    bool
        True for images.
    """
    import polars as pl

    return holds_pixels(series) or series.dtype == pl.Binary


def names_images(series: "polars.Series", folder: Path) -> bool:
    """Tell whether a column holds the paths of image files.

    Parameters
    ----------
    series : polars.Series
        A column of a table.
    folder : Path
        The folder that paths start from.

    Returns
    -------
    bool
        True if every word ends like an image file, and the first file exists.
    """
    import polars as pl

    known = series.drop_nulls() if series.dtype == pl.String else None
    if known is None or not len(known) or not known.str.to_lowercase().str.contains(r"\.(png|jpe?g)$").all():
        return False
    return (folder / Path(known[0]).expanduser()).is_file()


def rows_of_images(series: "polars.Series", folder: Path) -> Iterator[np.ndarray | bytes | str]:
    """Return pixels, or the content of a file, or a sentence about the fault, for row after row.

    Parameters
    ----------
    series : polars.Series
        Pixels, contents or paths.
    folder : Path
        The folder that paths start from.

    Returns
    -------
    iterator of ndarray, bytes or str
        The rows.
    """
    import polars as pl

    if isinstance(series.dtype, pl.Array):
        yield from series.to_numpy()
    elif series.dtype == pl.Binary:
        yield from ("there is no image" if content is None else content for content in series)
    elif series.dtype == pl.String:
        homes = (None if path is None else str(Path(path).expanduser()) for path in series)
        yield from ("there is no path" if path is None else image_content(path, folder) for path in homes)
    else:
        raise DataError(f"column {series.name!r} has neither pixels nor image files nor their paths, but {series.dtype}")


def image_content(path: str, folder: Path) -> bytes | str:
    """Read an image file, if it is not too large.

    Parameters
    ----------
    path, folder
        The path, and the folder that it starts from.

    Returns
    -------
    bytes or str
        The content, or a sentence about the fault.
    """
    file = folder / path
    try:
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):  # a device has no end, and a pipe may never answer
            return f"{path} is no ordinary file; paths start from {folder.absolute()}"
        if about.st_size > MOST_BYTES:
            return f"{path} has {about.st_size / 1e6:.0f} MB, and the limit is {MOST_BYTES / 1e6:.0f} MB"
        return file.read_bytes()
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}); paths start from {folder.absolute()}"


def pixels_of(row: np.ndarray | bytes | str, shape: tuple[int, int, int], white: float) -> np.ndarray:
    """Return the pixels of one row in [0, 1].

    Parameters
    ----------
    row : ndarray, bytes or str
        From `rows_of_images`.
    shape : tuple of int
        Height, width and channels. A file is resized to it; an array must have it.
    white : float
        The value of a white pixel in an array.

    Returns
    -------
    ndarray
        [height * width * channels], float32.

    Raises
    ------
    DataError
        With the fault, in one line.
    """
    if isinstance(row, str):
        raise DataError(row)
    if isinstance(row, bytes):
        return decode(row, shape).reshape(-1)
    if row.size != math.prod(shape) or row.shape not in (shape, shape[:2]):
        raise DataError(f"the array has {' x '.join(map(str, row.shape))} values, and the schema {' x '.join(map(str, shape))}")
    values = np.nan_to_num(np.asarray(row, np.float32).reshape(-1), nan=0.0)
    return np.clip(values / np.float32(white), 0, 1)


def decode(content: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """Decode a PNG or JPEG file, turn it as its EXIF entry says, and bring it to a size and a number of channels.

    An image with clear parts is put on white, unless the schema asks for its opacity.

    Parameters
    ----------
    content : bytes
        The file.
    shape : tuple of int
        Height, width, and 1 (grey), 3 (colour) or 4 channels (colour and opacity). An image of another size is stretched.

    Returns
    -------
    ndarray
        [height, width, channels], float32 in [0, 1].
    """
    height, width, depth = shape
    if depth not in MODES:
        raise DataError(f"a file has 1, 3 or 4 channels, and the schema says {depth}")
    from PIL import Image, ImageOps

    try:
        with _opened(content) as image:
            if image.mode.startswith("I"):  # 16 bits: Pillow would cut values above 255
                values = np.asarray(image, np.float32) / np.float32(257)
                plain = Image.fromarray(np.clip(values, 0, 255).round().astype(np.uint8))
            else:
                plain = image
            turned = ImageOps.exif_transpose(plain)
            shown = (turned if depth == 4 else _on_white(turned)).convert(MODES[depth])
            sized = shown if shown.size == (width, height) else shown.resize((width, height), Image.Resampling.BILINEAR)
            return np.asarray(sized, np.float32).reshape(shape) / np.float32(255)
    except DataError:
        raise
    except Exception as error:  # any error of the decoder means that the file is broken
        raise DataError(f"it cannot be decoded ({' '.join(str(error).split())[:120]}): replace it") from None


def _on_white(image: Any) -> Any:
    """Show white through the clear parts: Pillow would show the colour below them, which nobody sees and is often black."""
    from PIL import Image

    if "A" not in image.getbands() and "transparency" not in image.info:
        return image
    layers = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)


def decoded_shape(row: np.ndarray | bytes | str) -> tuple[int, int, int]:
    """Return the height, the width and the channels of an image: of a file 1 or 3, from its header.

    Parameters
    ----------
    row : ndarray, bytes or str
        From `rows_of_images`.

    Returns
    -------
    tuple of int
        The shape.
    """
    if isinstance(row, str):
        raise DataError(row)
    if isinstance(row, np.ndarray):
        return row.shape[0], row.shape[1], row.shape[2] if row.ndim == 3 else 1
    try:
        with _opened(row) as image:
            return image.height, image.width, 1 if image.mode in ("1", "L", "LA", "I", "I;16") else 3
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"it cannot be decoded ({' '.join(str(error).split())[:120]}): replace it") from None


def _opened(content: bytes) -> Any:
    """Open a file: Pillow reads its header now, and its pixels later."""
    require_extra("PIL", "images", "A PNG or JPEG file")
    from PIL import Image, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below is lower
        try:
            image = Image.open(io.BytesIO(content), formats=("PNG", "JPEG"))
        except UnidentifiedImageError:
            raise DataError("it is neither a PNG nor a JPEG image: convert it, or leave it out") from None
        except Image.DecompressionBombError:  # Pillow does not say how many pixels
            raise DataError(f"it has far more pixels than {MOST_PIXELS / 1e6:g} million, the limit: make it smaller") from None
    if image.width * image.height > MOST_PIXELS:
        raise DataError(
            f"it has {image.width} x {image.height} pixels once it is unpacked, and the limit is {MOST_PIXELS / 1e6:g} "
            "million: make it smaller"
        )
    return image


def read_folder(folder: Path) -> tuple[dict[str, list[Any]], str]:
    """Read the images of a folder: CLASS/x.png, CLIENT/CLASS/x.png, or x.png without a class.

    Parameters
    ----------
    folder : Path
        The folder; `image_files` says which files count.

    Returns
    -------
    columns : dict of str to list
        "file" (the path below the folder) and "image" (the content), and "label" and "client" as the folders name them.
    checksum : str
        SHA-256 of all names and contents.
    """
    found = list(image_files(folder))
    if not found:
        raise DataError(f"{folder} has no images: put {', '.join(ENDINGS)} files into folders that are named by their class")
    names, contents, digest = [name for name, _ in found], [], hashlib.sha256()
    levels = {name.count("/") for name in names}
    if len(levels) > 1 or max(levels) > len(FOLDER_COLUMNS):
        odd = next((name for name in names if name.count("/") != names[0].count("/")), names[0])
        raise DataError(
            f"{folder}: {names[0]} and {odd} do not fit one layout: use CLASS/x.png or CLIENT/CLASS/x.png for all images"
        )
    for name, content in found:
        if isinstance(content, str):
            raise DataError(f"{folder}: {content}")
        contents.append(content)
        digest.update(repr((name, len(content))).encode() + content)
    columns: dict[str, list[Any]] = {"file": names, "image": contents}
    depth = levels.pop()
    for level, column in enumerate(FOLDER_COLUMNS[len(FOLDER_COLUMNS) - depth :]):
        columns[column] = [name.split("/")[level] for name in names]
    return columns, digest.hexdigest()


def image_files(folder: Path) -> Iterator[tuple[str, bytes | str]]:
    """Read the image files below a folder, in the order of their paths.

    Parameters
    ----------
    folder : Path
        The folder.

    Returns
    -------
    iterator of (str, bytes or str)
        The path below the folder, and the content or a sentence about the fault.
    """
    names = image_paths(folder)
    require_memory(sum((folder / name).stat().st_size for name in names if (folder / name).is_file()))
    for name in names:
        yield name, image_content(name, folder)


def image_paths(folder: Path) -> list[str]:
    """Find the image files below a folder.

    Parameters
    ----------
    folder : Path
        The folder. Hidden files, and files with other endings than .png, .jpg and .jpeg, do not count.

    Returns
    -------
    list of str
        The paths below the folder, in order.
    """
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place) / name for name in names if name.lower().endswith(ENDINGS) and not name.startswith(".")]
    return sorted(file.relative_to(folder).as_posix() for file in found)
