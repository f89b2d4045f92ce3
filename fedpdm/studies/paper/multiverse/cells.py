"""The settings of a reading: the four panels of Figure 7, with the five algorithms each."""

from collections.abc import Sequence

from fedpdm.choices import ALGORITHMS
from fedpdm.config import Config, load_config
from fedpdm.studies.compare import POINTS
from fedpdm.studies.paper.figures import Panel, panels
from fedpdm.studies.paper.multiverse.factors import FACTORS, Reading

__all__ = ["PANELS", "reading_cells", "noise_ratio"]

PANELS: tuple[Panel, ...] = tuple(panel for panel in panels() if panel.figure == "fig7")
UNDIAGNOSED = "metrics.diagnose_every=0"  # objective and stationarity read all training data, and no answer needs them
NAMES = {row.title: name for name, row in ALGORITHMS.items()}


def reading_cells(reading: Reading, extra: Sequence[str] = ()) -> dict[tuple[str, str], Config]:
    """Make the settings of a reading, for seed 0.

    Parameters
    ----------
    reading : Reading
        A level of every factor.
    extra : sequence of str
        Further settings, to try the machinery on small data.

    Returns
    -------
    dict of (panel, curve) to Config
        The settings.
    """
    result = {}
    for panel in PANELS:
        for curve in panel.curves:
            own = [*panel.settings, *curve.settings, *_settings(reading, NAMES[curve.label], _noised(panel)), *extra]
            rounds = load_config(panel.preset, own).rounds.total
            config = load_config(panel.preset, [*own, f"metrics.evaluate_every={max(1, rounds // POINTS)}", UNDIAGNOSED])
            result[panel.name, curve.label] = _with_epsilon(config, reading)
    return result


def noise_ratio(config: Config, rho: float) -> float:
    r"""Compute by how much a baseline's noise differs from FedPDM's at the same epsilon, in the middle round.

    Theorem 1 gives $\sigma \propto g \frac{1 - |1 - w\eta|^Q}{1 - |1 - w\eta|}$ with w the weight of the proximal term, and
    g = 2 for FedPDM's y, 1 for x. The ratio depends on the step size, so it is exact in the middle round only.

    Parameters
    ----------
    config : Config
        Settings of the baseline.
    rho : float
        FedPDM's weight.

    Returns
    -------
    float
        The baseline's standard deviation over FedPDM's.
    """
    weight = {"fedprox": config.algorithm.mu, "feddyn": config.algorithm.alpha}.get(config.algorithm.name, 0.0)
    step = config.local.step_size
    if config.local.schedule == "inverse-sqrt":
        step /= (1 + config.rounds.total // 2) ** 0.5
    return _walk(weight * step, config.local.steps) / (2 * _walk(rho * step, config.local.steps))


def _walk(pull: float, steps: int) -> float:
    rate = abs(1 - pull)
    return steps if rate == 1 else (1 - rate**steps) / (1 - rate)


def _noised(panel: Panel) -> bool:
    return any(setting.startswith("privacy.epsilon") for setting in panel.settings)


def _settings(reading: Reading, algorithm: str, noised: bool) -> list[str]:
    found: list[str] = []
    for factor in FACTORS:
        if algorithm in factor.algorithms and (noised or not factor.only_noise):
            found += next(level.settings for level in factor.levels if level.name == reading[factor.name])
    return found


def _with_epsilon(config: Config, reading: Reading) -> Config:
    """Noise is in proportion to c0 and to 1/epsilon, so c0 and a common sigma are readings of epsilon."""
    if config.privacy.epsilon is None:
        return config
    epsilon = config.privacy.epsilon / float(reading["c0"])
    if config.algorithm.name != "fedpdm" and reading["noise"] == "that of FedPDM":
        rho = load_config(PANELS[0].preset).algorithm.rho
        epsilon *= noise_ratio(config, rho)
    return config.model_copy(update={"privacy": config.privacy.model_copy(update={"epsilon": epsilon})})
