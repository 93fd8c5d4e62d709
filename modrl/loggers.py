"""Where rows go beside metrics.csv: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import contextlib
import json
import math
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from modrl.config import BadInput, Settings, read_file
from modrl.extras import require_extra
from modrl.metrics import Row
from modrl.rundir import RunDir, write_whole
from modrl.settings import Logging

Board = Callable[[Row], None]


def require_loggers(settings: Logging) -> None:
    """Finds out whether the libraries that these settings ask for are installed.

    Raises:
        BadInput: one is not; says how to install it.
    """
    for name in ("wandb", "mlflow"):
        if getattr(settings, name) is not None:
            require_extra(name, f"logging.{name}", name, name)


@contextlib.contextmanager
def boards(settings: Logging, directory: RunDir, env_steps: int) -> Iterator[Board]:
    """Gives what every row is handed to; the run goes on from `env_steps`."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(_tensorboard(directory.path, env_steps))] if settings.tensorboard else []
        if settings.wandb is not None:
            made.append(stack.enter_context(_wandb(settings.wandb, directory)))
        if settings.mlflow is not None:
            made.append(stack.enter_context(_mlflow(settings.mlflow, directory)))

        def write(row: Row) -> None:
            for board in made:
                board(row)

        yield write


def _numbers(row: Row) -> dict[str, float]:
    """The row's columns that have a finite number, under names that group them."""
    return {
        name if "/" in name else f"run/{name}": value
        for name, value in row.items()
        if value is not None and name != "env_steps" and math.isfinite(value)
    }


@contextlib.contextmanager
def _tensorboard(folder: Path, env_steps: int) -> Iterator[Board]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder), purge_step=env_steps or None)

    def write(row: Row) -> None:
        for name, value in _numbers(row).items():
            writer.add_scalar(name, value, int(row["env_steps"] or 0))

    with contextlib.closing(writer):
        yield write


def _remembered(directory: RunDir, name: str, new: Callable[[], str]) -> str:
    """The run's identity at a service, the same when it is resumed."""
    path = directory.path / "loggers.json"
    try:
        known: dict[str, str] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        assert isinstance(known, dict)
    except (ValueError, AssertionError):
        raise BadInput(f"{path} is damaged: mend it, or move it away to go on as a new run at the service") from None
    if name not in known:
        known[name] = new()
        write_whole(path, json.dumps(known, indent=2) + "\n")
    return known[name]


def _settings_of(directory: RunDir) -> dict[str, Any]:
    return dict(read_file(directory.experiment).data)


def _options(settings: Settings) -> dict[str, Any]:
    return {name: value for name, value in settings if value is not None}


@contextlib.contextmanager
def _wandb(settings: Settings, directory: RunDir) -> Iterator[Board]:
    import wandb

    experiment = _settings_of(directory)
    identity = _remembered(directory, "wandb", lambda: uuid.uuid4().hex[:8])
    run = wandb.init(
        id=identity,
        resume="allow",
        dir=str(directory.path),
        name=f"{experiment['name']}-{experiment['seed']}",
        config=experiment,
        **_options(settings),
    )
    run.define_metric("env_steps")
    run.define_metric("*", step_metric="env_steps")
    try:
        yield lambda row: run.log({**_numbers(row), "env_steps": row["env_steps"]})
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish()


@contextlib.contextmanager
def _mlflow(settings: Any, directory: RunDir) -> Iterator[Board]:
    from mlflow.tracking import MlflowClient

    experiment = _settings_of(directory)
    own = settings.tracking_uri is None
    client = MlflowClient(tracking_uri=f"sqlite:///{directory.path.resolve() / 'mlflow.db'}" if own else settings.tracking_uri)
    artifacts = (directory.path.resolve() / "mlartifacts").as_uri() if own else None

    def begun() -> str:
        found = client.get_experiment_by_name(settings.experiment)
        home = client.create_experiment(settings.experiment, artifact_location=artifacts) if found is None else found.experiment_id
        run = client.create_run(home, run_name=f"{experiment['name']}-{experiment['seed']}")
        client.log_dict(run.info.run_id, experiment, "experiment.yaml")
        return str(run.info.run_id)

    identity = _remembered(directory, "mlflow", begun)
    client.update_run(identity, "RUNNING")

    def write(row: Row) -> None:
        for name, value in _numbers(row).items():
            client.log_metric(identity, name, value, step=int(row["env_steps"] or 0))

    try:
        yield write
    except BaseException:
        client.set_terminated(identity, "FAILED")
        raise
    client.set_terminated(identity)
