"""The ServerApp: settings from the run config, a run folder, and the Strategy."""

import logging
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import Field, ValidationError

from fedpdm.config import Config, Section, validate
from fedpdm.config.keys import dotted, nested
from fedpdm.engines.flower.setting import agreed
from fedpdm.errors import ConfigError, UserError
from fedpdm.runs.folder import FolderInUse, RunFolder

__all__ = ["app", "ServerOptions", "read_run_config", "train"]

_log = logging.getLogger("flwr")
PREFIX = "flower."

app = ServerApp()


class ServerOptions(Section):
    """The keys `flower.*` of the run config: how the server runs, not what is trained."""

    out: str = Field(description="run folder on the server; one that holds a run of these settings is gone on with")
    noise: Literal["secure", "simulation"] = Field(default="secure", description="simulation: only with public data")
    nodes: int = Field(default=0, ge=0, description="clients that must be connected to begin a round; 0: all")
    wait: float = Field(default=600.0, gt=0, description="seconds to wait for them")
    timeout: float = Field(default=600.0, gt=0, description="seconds to wait for the replies of a round")
    test: Literal["dataset", "none"] = Field(default="dataset", description="what the server measures accuracy with")
    data_dir: str = Field(default="", description="where the server looks for the files of known data sets")


def read_run_config(run_config: dict[str, Any]) -> tuple[Config, ServerOptions]:
    """Settings and server options; the keys are those of `fedpdm config show`, and an empty value means unset."""
    given = {key: value for key, value in run_config.items() if value != ""}
    options = {key.removeprefix(PREFIX): value for key, value in given.items() if key.startswith(PREFIX)}
    values = nested({key: value for key, value in given.items() if not key.startswith(PREFIX)})
    try:
        return agreed(validate(values)), ServerOptions.model_validate(options)
    except ValidationError as error:
        wrong = "; ".join(f"{PREFIX}{dotted(e['loc'])}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"The run config does not fit: {wrong}.") from None


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train; a user's mistake ends the run with one line."""
    try:
        train(grid, dict(context.run_config))
    except UserError as error:
        sys.tracebacklimit = 0  # Flower logs the exception with its traceback, which would say nothing to the user
        raise UserError(str(error)) from None


def train(grid: Grid, run_config: dict[str, Any]) -> dict[str, Any]:
    """Run the job of this run config to its end, from its checkpoint if there is one; returns the summary."""
    config, options = read_run_config(run_config)
    test, shape, checksums = _test_data(config, options)
    folder, job = _open_patiently(config, options, checksums)
    with closing(folder):
        if summary := folder.summary():
            _log.info("fedpdm: the run in %s is complete already: nothing to do", folder.path)
            return summary
        return _run(grid, config, options, folder, job, test, shape)


def _run(
    grid: Grid, config: Config, options: ServerOptions, folder: RunFolder, job: str, test: Any, shape: tuple[int, int] | None
) -> dict[str, Any]:
    from fedpdm.engines.flower.compile_cache import use_compile_cache
    from fedpdm.engines.flower.server.coordinator import Coordinator
    from fedpdm.engines.flower.server.strategy import Nodes, PrimalDual

    use_compile_cache(folder.path)
    least = options.nodes or config.data.clients
    nodes = Nodes(grid, _introduction(config, options, job), config.data.clients, options.timeout)
    nodes.wait_for(least, options.wait)
    coordinator = Coordinator(config, folder, job, options.noise, shape or nodes.shape(), test)
    strategy = PrimalDual(coordinator, nodes, least, options.wait)
    strategy.summary()
    strategy.start(grid, timeout=options.timeout)
    summary = coordinator.finish()
    _log.info("fedpdm: %s", summary["guarantee"])
    _log.info("fedpdm: the run folder is %s", folder.path)
    return summary


def _open_patiently(config: Config, options: ServerOptions, checksums: dict[str, str]) -> Any:
    """The run folder, once the process of an earlier run that was given up has noticed so and ended."""
    from fedpdm.engines.flower.server.run_folder import open_run

    until = time.monotonic() + options.wait
    while True:
        try:
            return open_run(Path(options.out), config, options.noise, checksums)
        except FolderInUse as error:
            if time.monotonic() > until:
                raise
            _log.info("fedpdm: waiting: %s", error)
            time.sleep(2.0)


def _introduction(config: Config, options: ServerOptions, job: str) -> Any:
    import json

    from fedpdm.engines.flower.protocol import Request

    return Request(job, 0, -1, json.dumps(config.model_dump(mode="json")), options.noise, "")


def _test_data(config: Config, options: ServerOptions) -> tuple[Any, tuple[int, int] | None, dict[str, str]]:
    """The test examples of the known data set, the model's shape, and the files' checksums; nothing for own data."""
    if options.test == "none":
        return None, None, {}
    from fedpdm.data.prepare import build_federation
    from fedpdm.engines.flower.server.coordinator import TestSet

    known = build_federation(config, Path(options.data_dir) if options.data_dir else None, progress=False)
    shape = known.classes, known.features.shape[2]
    return TestSet(known.test_features, known.test_labels), shape, known.checksums
