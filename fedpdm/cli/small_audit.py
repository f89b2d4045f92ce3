"""The audit of a small case: which losses and modes, and the attack on made-up rows."""

import itertools
from typing import TYPE_CHECKING

from fedpdm.errors import ConfigError

if TYPE_CHECKING:
    from fedpdm.audit.verdict import AuditResult
    from fedpdm.config import Config

__all__ = ["attack_small", "small_cases"]


def small_cases(mechanism: str, loss: str | None, mode: str | None) -> list[dict[str, str]]:
    """List the losses and modes to attack.

    Parameters
    ----------
    mechanism : str
        "sound" or "paper".
    loss, mode : str, optional
        A name, or "all"; without both there is one case, with its own.

    Returns
    -------
    list of dict
        "loss" and "mode" of every case; nothing for its own.
    """
    from fedpdm.choices import LOSSES
    from fedpdm.choices.words import MODES

    if loss is None and mode is None:
        return [{}]
    if mechanism == "paper":
        raise ConfigError("--loss and --mode are for the sound mechanism: the paper's has one loss and one mode.")
    losses, modes = [row.name for row in LOSSES.values()], list(MODES)
    for name, value, known in (("loss", loss, losses), ("mode", mode, modes)):
        if value not in (None, "all", *known):
            raise ConfigError(f"Unknown --{name} {value!r}: choose one of {', '.join(known)}, or all.")
    chosen = losses if loss == "all" else [loss or "softmax"], modes if mode == "all" else [mode or "contractive"]
    return [{"loss": loss, "mode": mode} for loss, mode in itertools.product(*chosen)]


def attack_small(config: "Config", attack: str, runs: int, canaries: int, seed: int) -> "AuditResult":
    """Attack made-up rows of the loss's kind of label.

    Parameters
    ----------
    config : Config
        From `fedpdm.audit.audit.small_config`.
    attack, runs, canaries, seed
        As the command has them.

    Returns
    -------
    AuditResult
        Lower bounds and verdict.
    """
    from fedpdm.audit import audit as auditing
    from fedpdm.choices import LOSSES

    target = LOSSES.row(config.problem.loss).target
    if attack == "one-run":
        federation = auditing.small_federation(canaries + 50, canaries + 1, target=target)
        return auditing.audit_one_run(config, federation, canaries, seed)
    return auditing.audit_federation(config, auditing.small_federation(target=target), attack, runs, seed)
