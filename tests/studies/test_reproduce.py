"""The paper's study: its panels are valid, its claims are judged right, and a small version of it runs."""

import json
import subprocess
import sys

import pytest

from fedpdm.choices import ALGORITHMS
from fedpdm.config import Config
from fedpdm.errors import UserError
from fedpdm.studies.paper import certified, heterogeneity
from fedpdm.studies.paper.claims import CLAIMS, judge, judge_all
from fedpdm.studies.paper.effects import fit_quality
from fedpdm.studies.paper.figures import FIGURES, Scale, cells, panels
from fedpdm.studies.paper.readings import readings
from fedpdm.studies.paper.remedies import compare_remedies, remedy_lines
from fedpdm.studies.paper.reproduce import reproduce
from fedpdm.studies.paper.variants import VARIANTS
from fedpdm.studies.paper.verdicts import first_or_within

DIGITS = ("data.name=digits", "data.clients=10", "rounds.participants=4", "data.partition=iid")
TINY = Scale(quick=True, preset="paper-mnist", rounds=4, settings=DIGITS)
BY_ID = {claim.id: claim for claim in CLAIMS}


def test_every_panel_is_valid_and_has_something_for_quick():
    assert {panel.figure for panel in panels()} == set(FIGURES)
    for panel in panels():
        full, quick = cells(panel), cells(panel, Scale(quick=True))
        assert set(quick) < set(full)
        assert len(quick) >= 2
        for config in full.values():
            assert isinstance(config, Config)
            assert config.rounds.total == (200 if panel.figure in ("fig2", "fig3", "fig8") else 100)
            if config.privacy.mechanism == "paper":
                assert config.privacy.delta == 1e-4
    assert all(readings(figure) for figure in FIGURES)


def test_the_numbers_of_the_paper():
    def named(name: str) -> dict[str, Config]:
        return {key[1]: config for key, config in cells(next(p for p in panels() if p.name == name)).items()}

    assert [c.privacy.epsilon for c in named("fig4a").values()] == [0.2, 0.5, 1.0, None]
    assert [c.privacy.epsilon for c in named("fig4b").values()] == [10.0, 20.0, 30.0, None]
    assert [c.problem.beta for c in named("fig5b").values()] == [0.0, 0.05, 0.5, 5.0]
    assert {c.privacy.epsilon for c in named("fig6d").values()} == {5.0}
    assert {c.privacy.epsilon for c in named("fig7d").values()} == {10.0}
    assert named("fig7a")["FedDyn"].algorithm.alpha == named("fig7a")["FedPDM"].algorithm.rho == 10.0
    compression = named("fig8d")["SCAFFOLD"].compression
    assert (compression.uplink, compression.downlink, compression.kind) == (0.5, 0.75, "topk")


def test_claims_are_unique_and_about_panels_that_exist():
    assert len(BY_ID) == len(CLAIMS)
    names = {panel.name for panel in panels()}
    assert all(claim.panels and set(claim.panels) <= names for claim in CLAIMS)
    assert {name for claim in CLAIMS for name in claim.panels} == names
    points = {key for panel in panels() for key in cells(panel)}
    assert {variant.base for variant in VARIANTS} <= points


@pytest.mark.parametrize(
    ("differences", "expected"),
    [((0.1, 0.12, 0.11), "holds"), ((-0.1, -0.12, -0.11), "does not hold"), ((0.1, -0.12, 0.02), "undecided")],
)
def test_the_three_verdicts(differences, expected):
    base = (0.5, 0.6, 0.7)  # the seeds differ much more than the curves: only a paired test sees it
    table = {
        ("fig7a", "FedPDM", None): [{"last": b + d} for b, d in zip(base, differences, strict=True)],
        ("fig7a", "FedAvg", None): [{"last": b} for b in base],
    }
    result = judge(BY_ID["fig7a-fedavg"], table)
    assert result["verdict"] == expected
    assert result["effect"] == pytest.approx(sum(differences) / 3, abs=1e-4)
    assert result["interval"][0] < result["effect"] < result["interval"][1]
    judged, left_out = judge_all(table)
    assert [claim["id"] for claim in judged] == ["fig7a-fedavg"]
    assert len(left_out) == len(CLAIMS) - 1


def test_signs_are_those_of_the_claims():
    def curves(panel: str, labels: list[str], accuracies: list[float]) -> dict:
        return {(panel, label, None): [{"last": a}, {"last": a}] for label, a in zip(labels, accuracies, strict=True)}

    gammas, falling = [f"gamma {g}" for g in ("0", "0.05", "0.5", "5")], [0.8, 0.7, 0.6, 0.5]
    assert judge(BY_ID["fig6a-gamma"], curves("fig6a", gammas, falling))["verdict"] == "holds"
    assert judge(BY_ID["fig6b-gamma"], curves("fig6b", gammas, falling))["verdict"] == "does not hold"
    betas = [f"beta {b}" for b in ("0", "0.05", "0.5", "5")]
    assert judge(BY_ID["fig5b-beta"], curves("fig5b", betas, falling))["verdict"] == "holds"
    epsilons = ["epsilon 10", "epsilon 20", "epsilon 30", "without DP"]
    assert judge(BY_ID["fig4b-epsilon"], curves("fig4b", epsilons, falling))["verdict"] == "does not hold"
    ratios = {
        ("fig2a", kind, r): [{"uplink_bytes": [cost * r]}] * 2
        for kind in ("top-k", "rand-k")
        for r, cost in ((0.1, 120), (0.5, 110), (1.0, 100))
    }
    assert judge(BY_ID["fig2a-cost"], ratios)["verdict"] == "holds"
    assert judge(BY_ID["P2a-encoded"], ratios)["verdict"] == "does not hold"  # 20 % above 50 % x alpha_U


def test_a_diverged_run_counts_as_accuracy_zero():
    table = {("fig7a", "FedPDM", None): [{"diverged": "NaN"}], ("fig7a", "FedAvg", None): [{"last": 0.5}]}
    assert judge(BY_ID["fig7a-fedavg"], table)["effect"] == -0.5


def test_fit_of_one_over_t():
    rounds = list(range(1, 21))
    running = [3 / t + 0.5 for t in rounds]
    measure = [running[0], *(t * running[t - 1] - (t - 1) * running[t - 2] for t in rounds[1:])]
    assert fit_quality(rounds, measure) == pytest.approx(1.0)
    assert fit_quality(rounds, [1.0 + t for t in rounds]) == -1.0


def test_a_tiny_figure_end_to_end_and_again_from_its_cells(tmp_path):
    result = reproduce("fig4", tmp_path, seeds=2, scale=TINY, show_progress=False)
    ids = [claim["id"] for claim in result.claims]
    assert ids == ["fig4a-epsilon", "fig4a-rounds", "fig4b-epsilon", "fig4b-rounds", "T3a"]
    stored = ["cells.jsonl", "variants.jsonl", "calls.jsonl"]
    names = {"fig4.png", "fig4.svg", "fig4.csv", "claims.json", "claims.md", *stored}
    assert {f.name for f in tmp_path.iterdir()} == names
    claims = json.loads((tmp_path / "claims.json").read_text())
    assert claims == result.claims
    assert {"id", "claim", "check", "effect", "interval", "verdict"} <= claims[0].keys()
    assert "Left out" in (tmp_path / "claims.md").read_text()
    cells, variants, calls = stores = [(tmp_path / name).read_text() for name in stored]
    assert json.loads(calls)["runs"] == len((cells + variants).splitlines())
    assert "Calls that ran something: 1," in (tmp_path / "claims.md").read_text()
    assert reproduce("fig4", tmp_path, seeds=2, scale=TINY, show_progress=False).claims == result.claims
    assert [(tmp_path / name).read_text() for name in stored] == stores, "a call that runs nothing leaves no trace"
    (tmp_path / "calls.jsonl").write_text(calls[:20])
    with pytest.raises(UserError, match=r"calls\.jsonl is damaged"):
        reproduce("fig4", tmp_path, seeds=2, scale=TINY, show_progress=False)


def test_a_wrong_figure_is_one_line_and_exit_code_2():
    command = [sys.executable, "-m", "fedpdm.cli.main", "reproduce", "fig9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 2
    names = "fig2, fig3, fig4, fig5, fig6, fig7, fig8, all, certified, heterogeneity, readings"
    assert done.stderr == f"fedpdm: Unknown figure 'fig9': choose one of {names}.\n"


def test_first_or_within_the_interval_of_the_first():
    better = {"fedpdm": [0.90, 0.91, 0.92], "fedavg": [0.80, 0.82, 0.81], "feddyn": [0.85, 0.84, 0.86]}
    found = first_or_within("x", "accuracy", better)
    assert (found["against"], found["verdict"], found["seeds"]) == ("feddyn", "holds", 3)
    assert first_or_within("x", "objective", better, sign=-1.0)["against"] == "fedavg"
    assert first_or_within("x", "objective", better, sign=-1.0)["verdict"] == "does not hold"
    close = better | {"feddyn": [0.91, 0.90, 0.93]}
    assert first_or_within("x", "accuracy", close)["verdict"] == "holds", "within the interval"
    behind = better | {"feddyn": [0.95, 0.96, 0.97]}
    assert first_or_within("x", "accuracy", behind)["verdict"] == "does not hold"


def test_remedies_are_set_against_the_best_baseline():
    panel = next(p for p in panels() if p.name == "fig7c")
    runs = {"FedPDM": 0.7, "FedAvg": 0.75, "SCAFFOLD": 0.8, "FedPDM, cached": 0.9}
    table = {("fig7c", label, None): [{"last": v}, {"last": v + 0.001}] for label, v in runs.items()}
    as_published, cached = remedy_lines(compare_remedies([panel], table))[-2:]
    assert "SCAFFOLD 0.8005 | as published | 0.7005" in as_published
    assert "below it" in as_published
    assert "cached | 0.9005" in cached
    assert "above it" in cached
    assert remedy_lines(compare_remedies([p for p in panels() if p.name == "fig4a"], table)) == []


def test_every_algorithm_has_a_grid_of_the_same_size():
    assert {len(grid) for grid in heterogeneity.GRID.values()} == {6}
    for (data, features), grid in certified.GRID.items():
        configs = [certified.settings(data, name, "1", cell, 0, True) for name in ALGORITHMS.built_in for cell in grid]
        assert all(config.data.validation and config.privacy.mechanism == "sound" for config in configs)
        maps = {"basis": "scattering", certified.RULED: "auto"}
        assert {config.data.features for config in configs} == {maps.get(features, features)}
        assert {config.data.basis != "none" for config in configs} == {features in maps}
