"""The time of an answer: it does not depend on the computation."""

import math
import sys
import time
from pathlib import Path

from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.errors import ConfigError

__all__ = ["hold"]


def hold(began: float, policy: Path) -> None:
    """Wait until `reply_after` seconds of the policy have passed since `began`, or a whole multiple of them.

    An answer that takes longer than `reply_after` leaves at the next multiple: an observer learns only that number.

    Parameters
    ----------
    began : float
        The start, by `time.monotonic`.
    policy : Path
        The policy's file.
    """
    try:
        every = load_policy(policy).time.reply_after
    except ConfigError:
        return  # only the policy was read
    if not every:
        return
    waits = max(1, math.ceil((time.monotonic() - began) / every))
    if waits > 1:
        print(f"fedpdm: an answer took longer than reply_after = {every:g} s: raise it.", file=sys.stderr, flush=True)
    time.sleep(max(0.0, began + waits * every - time.monotonic()))
