"""Lets a client's process kill itself with SIGKILL at a chosen point: found by Python at its start, for tests alone.

A file `die-at-POINT` in the node's state folder says where; it is removed first, so that it happens once. The point is a place
in the code, or TASK-ROUND: a request that has been read and not yet answered. A file `keep-shares` lets the process keep what
it adds to a secure sum, without the masks. With a file `lie` it contributes four times its update with the sign flipped. A
node without work asks for some every 0.3 s instead of every 3.
"""

import os
import signal
import sys
import time


def _install() -> None:
    import numpy as np

    import fedpdm.engines.flower.client.client as client
    from fedpdm.engines.flower.client.store import Store
    from fedpdm.privacy.ledger import Ledger

    folder = []

    def die_if(point: str) -> None:
        order = folder[0] / f"die-at-{point}"
        if order.exists():
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(owner: type, name: str, before: str = "", after: str = "") -> None:
        original = getattr(owner, name)

        def wrapped(*arguments, **named):
            if before:
                die_if(before)
            result = original(*arguments, **named)
            if after:
                die_if(after)
            return result

        setattr(owner, name, wrapped)

    answer = client.answer

    def answer_here(node, request):
        folder[:] = [node.state_dir]
        die_if(f"{request.task}-{request.round}")
        return answer(node, request)

    import fedpdm.engines.flower.cohort.node as cohort

    make_share = cohort.make_share

    def make_and_keep(agreement, own, broadcast, state, round_index, spend):
        words = make_share(agreement, own, broadcast, state, round_index, spend)
        if (folder[0] / "keep-shares").exists():
            np.save(folder[0] / f"share-{round_index}.npy", words)
        return words

    import fedpdm.engines.flower.cohort.share as share

    contribution = share.member_contribution

    def flipped_if_told(*arguments):
        return contribution(*arguments) * (-4 if (folder[0] / "lie").exists() else 1)

    share.member_contribution = flipped_if_told
    cohort.make_share = make_and_keep
    client.answer = answer_here
    wrap(client.Work, "make", before="solving")
    wrap(Ledger, "spend", after="spent")
    wrap(Store, "keep", after="kept")


def _ask_often() -> None:
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(0.3 if seconds == 3 else seconds)


if any(argument.endswith("flower-supernode") for argument in sys.orig_argv):
    _ask_often()
if any(argument.endswith(("flwr-clientapp", "flower-superexec")) for argument in sys.orig_argv):
    _install()
