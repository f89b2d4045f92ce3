"""Write made-up colour photos of rings and crosses, in folders CLIENT/CLASS/NUMBER.png: `python make_images.py photos`."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ring", "cross")
CLIENTS, EACH, SIDE = 4, 60, 16


def draw(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Draw one picture: a ring or a cross in any colour, at any place, with grain."""
    row, column = np.mgrid[:SIDE, :SIDE] - rng.uniform(SIDE / 3, 2 * SIDE / 3, (2, 1, 1))
    size = rng.uniform(3, 5)
    ring = np.abs(np.hypot(row, column) - size) < 1
    cross = (np.minimum(np.abs(row), np.abs(column)) < 1) & (np.maximum(np.abs(row), np.abs(column)) < size)
    ink, paper = rng.uniform(0.5, 1, 3), rng.uniform(0, 0.4, 3)
    picture = np.where((ring if kind == "ring" else cross)[..., None], ink, paper) + rng.normal(0, 0.05, (SIDE, SIDE, 3))
    return (255 * np.clip(picture, 0, 1)).astype(np.uint8)


def main(folder: Path) -> None:
    """Write the pictures of every client."""
    rng = np.random.default_rng(0)
    for client in range(CLIENTS):
        for kind in CLASSES:
            home = folder / f"studio-{client}" / kind
            home.mkdir(parents=True, exist_ok=True)
            for number in range(EACH):
                Image.fromarray(draw(kind, rng)).save(home / f"{number}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
