"""`fedpdm check`: are the files of a run, or of a client's state, what was written?"""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedpdm.errors import UserError

__all__ = ["check_command"]

RUN_FILES = ("manifest.json", "summary.json", "SHA256SUMS", "model.safetensors")  # any of them may be the one that is missing
STATE_FILES = ("state.sqlite", "ledger.sqlite", "identity.key")


def check_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN|STATE", help="A run folder, or the state folder of a Flower client.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Verify every file of a run or of a client's state, and say what can be saved. It changes nothing.

    \b
    Examples:
      fedpdm check runs/mine
      fedpdm check /var/lib/fedpdm/client-0
    """
    if any((folder / name).exists() for name in RUN_FILES):
        from fedpdm.runs.check import check_run

        found = check_run(folder)
    elif any((folder / name).exists() for name in STATE_FILES):
        from fedpdm.engines.flower.client.check import check_state

        found = check_state(folder)
    else:
        raise UserError(
            f"{folder} holds neither a run (manifest.json) nor a client's state (state.sqlite): name such a folder."
        )
    if as_json:
        print(json.dumps([finding._asdict() for finding in found], indent=2))
    for finding in found if not as_json else ():
        print(f"{finding.file}: {'ok' if finding.fault is None else finding.fault}")
        if finding.fault is not None:
            print(f"  what to do: {finding.remedy}")
    broken = [finding.file for finding in found if finding.fault is not None]
    if broken:
        raise UserError(f"{len(broken)} of {len(found)} files in {folder} are not as they were written: {', '.join(broken)}.")
