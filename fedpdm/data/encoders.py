"""A frozen public encoder as a feature map: an ONNX file with one input and one output vector per example.

The SHA-256 of the file is part of the settings, so every client uses the same encoder; another file is refused. The file is
looked for at `data.encoder`, and among the encoders that were added to the cache (`fedpdm features add`).
"""

import functools
import hashlib
import importlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.cache import cache_dir
from fedpdm.config import Config
from fedpdm.data.feature_map import FeatureMap
from fedpdm.data.maps import image_shape
from fedpdm.data.texts import encode_blocks, has_text
from fedpdm.errors import ConfigError, require_extra

__all__ = ["OVERLAP", "add_encoder", "encoder", "encoder_file", "encoder_of", "file_digest", "pinned", "with_encoder_pinned"]

BATCH = 32  # examples per call
MOST_BYTES = 2_000_000_000
CUSTOM = "ai.onnx.contrib"  # the operators of onnxruntime-extensions, such as tokenisers
OVERLAP = (
    "An encoder was fitted to data of its own. If private rows, or other data of the same persons, were among them, the "
    "guarantee does not cover what the encoder learnt: use one whose training data cannot overlap with yours."
)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of an encoder's file.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    try:
        with path.expanduser().open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"data.encoder={path} cannot be read: {error.strerror}. Give the path of an .onnx file.") from None


def pinned(path: str, digest: str) -> str:
    """Return the digest of the settings; if there is none yet, that of the file.

    Parameters
    ----------
    path, digest : str
        `data.encoder` and `data.encoder_digest`.

    Returns
    -------
    str
        The digest.
    """
    if not path and not digest:
        raise ConfigError("data.features=onnx needs an encoder: --set data.encoder=path/to/model.onnx")
    return digest or file_digest(Path(path))


def with_encoder_pinned(config: Config) -> Config:
    """Write the digest of the encoder's file into the settings, if they use an encoder.

    Parameters
    ----------
    config : Config
        The settings.

    Returns
    -------
    Config
        The settings with `data.encoder_digest`.
    """
    data = config.data
    if data.features != "onnx":
        return config
    path, digest = (str(getattr(data, key)) for key in ("encoder", "encoder_digest"))
    return config.model_copy(update={"data": data.model_copy(update={"encoder_digest": pinned(path, digest)})})


def encoder_of(config: Config) -> str:
    """Return the digest of the encoder that settings use.

    Parameters
    ----------
    config : Config
        The settings.

    Returns
    -------
    str
        The pinned digest; empty if they use none.
    """
    return str(getattr(config.data, "encoder_digest", "")) if config.data.features == "onnx" else ""


def add_encoder(path: Path) -> tuple[str, Path]:
    """Copy an encoder into the cache, where jobs find it by its digest.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    str, Path
        The digest, and the copy.
    """
    digest = file_digest(path)
    _load(path, digest)
    place = _place(digest)
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_suffix(".part")
    shutil.copyfile(path, part)
    part.replace(place)
    return digest, place


def encoder_file(path: str, digest: str) -> Path:
    """Find the file of an encoder: the copy in the cache, or the path of the settings.

    Parameters
    ----------
    path, digest : str
        `data.encoder` and `data.encoder_digest`.

    Returns
    -------
    Path
        A file with this digest.

    Raises
    ------
    ConfigError
        If neither file has it.
    """
    given = Path(path).expanduser()
    for place in (_place(digest), given):
        if place.is_file() and file_digest(place) == digest:
            return place
    if given.is_file():
        raise ConfigError(
            f"data.encoder={path} has the SHA-256 {file_digest(given)[:16]}..., but the settings pin {digest[:16]}...: it is "
            "another encoder, or it is damaged. Use the same file, or start a new run with this one (without encoder_digest)."
        )
    raise ConfigError(
        f"The encoder {Path(path).name or 'of the settings'} with the SHA-256 {digest} is not here: get the file, check "
        "where it comes from, and add it with `fedpdm features add FILE`."
    )


def _place(digest: str) -> Path:
    return cache_dir() / "encoders" / f"{digest}.onnx"


def _mark(path: Path) -> tuple[int, int]:
    """Size and time of a file: while they stay, it is not read again."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=2)
def _session(path: str, digest: str, *marks: tuple[int, int]) -> Any:
    del marks
    return _load(encoder_file(path, digest), digest)


def _load(path: Path, digest: str) -> Any:
    """Open a file whose digest was checked, from the bytes that were checked."""
    require_extra("onnx", "encoder", "data.features=onnx")
    require_extra("onnxruntime", "encoder", "data.features=onnx")
    import onnx
    import onnxruntime

    if path.stat().st_size > MOST_BYTES:
        raise ConfigError(f"data.encoder={path} has more than {MOST_BYTES / 1e9:g} GB: use a smaller encoder.")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ConfigError(f"data.encoder={path} changed while it was read: try again.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        model = onnx.load_model_from_string(content)
        if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
            raise ConfigError(f"data.encoder={path} keeps weights in other files, which no digest covers: save it in one file.")
        if any(opset.domain == CUSTOM for opset in model.opset_import):
            require_extra("onnxruntime_extensions", "tokeniser", "The tokeniser of this encoder")
            operators: Any = importlib.import_module("onnxruntime_extensions")
            options.register_custom_ops_library(operators.get_library_path())
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except ConfigError:
        raise
    except Exception as error:  # any error of the runtime means that the file is broken
        raise ConfigError(f"data.encoder={path} is not a valid ONNX file: {' '.join(str(error).split())[:200]}") from None
    if len(session.get_inputs()) != 1:
        names = ", ".join(each.name for each in session.get_inputs())
        raise ConfigError(f"data.encoder={path} has the inputs {names}: an encoder has one, the image or the text.")
    return session


def _run(session: Any, inputs: np.ndarray) -> np.ndarray:
    """Return [rows, m] float32."""
    about = session.get_inputs()[0]
    size = 1 if about.shape and about.shape[0] == 1 else BATCH
    parts = []
    for start in range(0, len(inputs), size):
        try:
            found = session.run([session.get_outputs()[0].name], {about.name: inputs[start : start + size]})
        except Exception as error:
            raise ConfigError(f"The encoder does not take these rows: {' '.join(str(error).split())[:200]}") from None
        parts.append(np.asarray(found[0], np.float32))
    out = np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)
    if out.ndim != 2 or len(out) != len(inputs) or not np.isfinite(out).all():
        raise ConfigError(
            f"The encoder gives {list(out.shape)} numbers for {len(inputs)} rows: expected one vector of finite numbers per "
            "row (put the pooling into the ONNX file)."
        )
    return out


def _of_images(session: Any, rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Bring rows of pixels to the encoder's input: [rows, channels, height, width], or the channels last, or flat."""
    height, width, depth = image_shape(names)
    about = session.get_inputs()[0]
    images = rows.reshape(-1, height, width, depth)
    shape = [size if isinstance(size, int) else None for size in about.shape[1:]]
    first = len(shape) == 3 and (shape[0] in (1, 3, 4) or shape[2] not in (1, 3, 4))
    if len(shape) == 3:
        wanted = shape[0] if first else shape[2]
        if depth == 1 and wanted in (3, 4):  # a grey image has the same value in every colour
            images = np.repeat(images, wanted, axis=3)
        images = images.transpose(0, 3, 1, 2) if first else images
    elif len(shape) == 1:
        images = rows
    if len(images.shape) != len(shape) + 1 or any(
        size not in (None, own) for size, own in zip(shape, images.shape[1:], strict=True)
    ):
        raise ConfigError(
            f"data.encoder takes {about.shape}, and an image has {height} x {width} pixels in {depth} channels: bring images "
            "to the encoder's size with `shape` in the schema."
        )
    if about.type == "tensor(uint8)":
        return _run(session, np.rint(255 * images).astype(np.uint8))
    return _run(session, np.ascontiguousarray(images, np.float32))


def encoder(*, encoder: str, encoder_digest: str) -> FeatureMap:
    """Make the map of a frozen encoder; its file is read when the first rows are mapped.

    Parameters
    ----------
    encoder, encoder_digest : str
        The path of the ONNX file, and its SHA-256; empty: that of the file as it is.

    Returns
    -------
    FeatureMap
        The map.
    """

    def session() -> Any:
        known = pinned(encoder, encoder_digest)
        return _session(encoder, known, *(_mark(place) for place in (_place(known), Path(encoder).expanduser())))

    def of_text(texts: list[str]) -> np.ndarray:
        opened = session()
        about = opened.get_inputs()[0]
        if about.type != "tensor(string)":
            raise ConfigError(f"data.encoder takes {about.type}, not texts: put the tokeniser into the ONNX file.")
        return _run(opened, np.array(texts, object).reshape((-1, 1) if len(about.shape) == 2 else (-1,)))

    def encode(rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
        if has_text(names):
            return encode_blocks(rows, names, of_text)[0]
        if names[0].startswith("pixel "):
            return _of_images(session(), rows, names)
        return _run(session(), np.ascontiguousarray(rows, np.float32))

    def columns(names: Sequence[str]) -> list[str]:
        probe = np.zeros((1, len(names)), np.float32)
        if has_text(names):
            return encode_blocks(probe, names, of_text)[1]
        return [f"encoded {index}" for index in range(encode(probe, names).shape[1])]

    digest = encoder_digest or (file_digest(Path(encoder)) if encoder else "")
    name = f"{Path(encoder).name}, SHA-256 {digest[:12]}..." if digest else "an ONNX file, pinned by its SHA-256"
    sentence = f"Images, texts or tables: the output of a frozen encoder ({name})."
    why = "The encoder is the same file for everybody, by its digest, and no private row changes it. " + OVERLAP
    return FeatureMap("onnx", sentence, encode, columns, why=why, key=(digest,))
