"""When an answer leaves: at a time that does not depend on what was computed."""

import math
import sys
import time
from pathlib import Path

from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.errors import ConfigError

__all__ = ["hold"]


def hold(began: float, policy: Path) -> None:
    """Wait until `reply_after` seconds of the policy have passed since `began` (`time.monotonic`), or a whole multiple of them.

    An answer that takes longer than `reply_after` leaves at the next multiple: whoever watches learns that number alone.
    """
    try:
        every = load_policy(policy).time.reply_after
    except ConfigError:
        return  # nothing was read but the policy
    if not every:
        return
    waits = max(1, math.ceil((time.monotonic() - began) / every))
    if waits > 1:
        print(f"fedpdm: an answer took longer than reply_after = {every:g} s: raise it.", file=sys.stderr, flush=True)
    time.sleep(max(0.0, began + waits * every - time.monotonic()))
