"""Gates on what a round costs, which do not depend on a quiet machine: instructions in loops, loops of XLA, bytes."""

import platform
import re

import numpy as np
import pytest

from fedpdm.config import load_config
from fedpdm.data import federation_from_arrays
from fedpdm.engines.simulation import programs
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.engines.simulation.memory import ALIGNMENT, LARGE_ARRAY, on_device
from fedpdm.native.groups import GROUP, add_four, add_four_to_two, add_group, dot_four, dot_four_with_two, dot_group
from fedpdm.native.moves import drift, move
from fedpdm.native.vectors import add, add_two, dot, dot_two, put, put_two

N, NUMBER = 100, np.float32(0.5)
ROWS, NUMBERS = np.ones((GROUP, N), np.float32), np.ones((2, GROUP), np.float32)
WHERE = np.array([row.ctypes.data for row in ROWS])
ROW, OTHER, TARGET, SECOND = (int(place) for place in WHERE)
GROUP_ROWS, TIMES, OTHERS = (int(array.ctypes.data) for array in (WHERE, *NUMBERS))
LOOPS = {
    dot: (N, ROW, OTHER),
    dot_two: (N, TARGET, ROW, OTHER),
    dot_group: (N, GROUP_ROWS, GROUP_ROWS, TIMES),
    dot_four: (N, ROW, ROW, 4 * N, TIMES),
    dot_four_with_two: (N, ROW, 4 * N, ROW, 4 * N, TIMES, 4 * GROUP),
    add_four: (N, TARGET, TIMES, ROW, 0),
    add_four_to_two: (N, TARGET, 4 * N, TIMES, 4 * GROUP, ROW, 0),
    add: (N, TARGET, NUMBER, ROW),
    add_two: (N, TARGET, NUMBER, ROW, NUMBER, OTHER),
    add_group: (N, TARGET, SECOND, TIMES, OTHERS, GROUP_ROWS),
    put: (N, TARGET, NUMBER, ROW),
    put_two: (N, TARGET, NUMBER, ROW, NUMBER, OTHER),
    drift: (N, TARGET, ROW, NUMBER, NUMBER, NUMBER, NUMBER),
    move: (N, TARGET, NUMBER, ROW, OTHER, NUMBER, NUMBER, NUMBER, NUMBER),
}
THIN = ("privacy.mechanism=paper", "privacy.epsilon=100000", "compression.kind=topk", "compression.uplink=0.1")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names of instructions are those of x86")
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_of_the_kernel_works_on_vectors(loop) -> None:
    """Most multiplications and all divisions inside the main loop are of whole vectors; a checked division would not be."""
    loop(*LOOPS[loop])
    text = next(iter(loop.inspect_asm().values()))
    assert re.search(r"v(fn?m(add|sub)\w*|mul)ps\s.*%[yz]mm", text), "no product of vectors"
    assert loop not in (drift, move) or re.search(r"vdivps\s.*%[yz]mm", text), "no division of vectors"


def round_program(*settings: str) -> str:
    """The compiled program of a round with 10 classes and 300 features."""
    rng = np.random.default_rng(0)
    rows = [(rng.standard_normal((20, 300), np.float32) / 20, rng.integers(0, 10, 20).astype(np.int32)) for _ in range(6)]
    fixed = ["local.steps=3", "local.batch_size=5", "rounds.total=4", "rounds.participants=3", "rounds.all_first=false"]
    config = load_config("paper-mnist", [*fixed, "metrics.diagnose_every=2", *settings])
    before = set(programs._compiled)
    simulation = build_simulation(config, federation_from_arrays(rows, *rows[0]))
    simulation.diagnose = dict
    simulation.advance()
    texts = [executable.as_text() for key, executable in programs._compiled.items() if key not in before]
    return next(text for text in texts if "fedpdm_linear_steps" in text)


@pytest.mark.parametrize("settings", [(), THIN], ids=["plain", "noise, clip, top-k"])
def test_a_round_has_no_loops_inside(settings) -> None:
    """Loops of XLA go through memory in every turn. The one over rounds is all: draws are one pass, and top-k is a kernel."""
    text = round_program(*settings)
    assert len(re.findall(r"\swhile\(", text)) == 1
    assert "sort(" not in text
    turned = set(re.findall(r"= (\w+\[[\d,]*\])\S* transpose\(", text))
    assert turned <= {"u32[3,2]"}, "only the keys of the three participants, two words each"


def test_large_arrays_lie_where_xla_takes_them_and_are_copies() -> None:
    array = np.ones((LARGE_ARRAY // 4 + 5, 1), np.float32)
    placed = on_device(array)
    array[:] = 2
    assert placed.unsafe_buffer_pointer() % ALIGNMENT == 0
    np.testing.assert_array_equal(placed, 1)
    assert on_device(np.arange(5.0)).dtype == np.float32
