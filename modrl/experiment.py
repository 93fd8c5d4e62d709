"""The experiment: an agent, its environments and a scheme, as settings that a file or a script states.

experiment = Experiment.load("examples/pong_impala.yaml", overrides=["scheme=a3c", "seed=3"])
result = experiment.run()
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import Field, field_validator, model_validator

from modrl import agent, checkpoint, envs  # noqa: F401 (registers the components)
from modrl.agent.actors.base import Actor
from modrl.agent.algorithms.base import Algorithm
from modrl.agent.optimizers import Optimizer
from modrl.agent.storages.base import Storage
from modrl.config import (
    BadInput,
    Component,
    ConfigError,
    Document,
    Origin,
    Problem,
    Settings,
    counted,
    dotted,
    dump,
    is_builtin,
    merge,
    override,
    problem,
    raised,
    read_file,
    shown,
    to_yaml,
    validate,
)
from modrl.envs.base import Envs, Probe, Timestep, probe
from modrl.envs.member import EnvError
from modrl.initial import initial_weights
from modrl.loggers import require_loggers
from modrl.metrics import Row
from modrl.run import Plan, Run
from modrl.rundir import RunDir, RunDirError, default_path, now
from modrl.scheme.parts import Machine, Parts, torch_device
from modrl.scheme.presets import expand
from modrl.scheme.scheme import Scheme
from modrl.scheme.settings import Pacing, PerWorker
from modrl.settings import Checkpointing, Evaluation, InitFrom, Logging
from modrl.stream import Stream, warn_of_lost_changes
from modrl.tree import tree_map
from modrl.video import require_video

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """What a run left behind."""

    run_dir: Path
    env_steps: int
    metrics: Row  # the last row


class Experiment(Settings):
    """Everything that one training run depends on. What changes the mathematics stands outside `scheme` and `machine`."""

    name: str = Field("experiment", pattern=r"^[\w-][\w.-]*$")
    seed: int = Field(1, ge=0)
    steps: int = Field(ge=1)
    """Agent steps, over all workers."""
    envs: Envs.Config
    actor: Actor.Config
    algorithm: Algorithm.Config
    optimizer: Optimizer.Config
    storage: Storage.Config
    scheme: Scheme.Config = Field(default_factory=lambda: Scheme.Config(preset="local"))
    init_from: InitFrom | None = None
    """A trained run whose weights this one begins with: its directory, or a block."""
    evaluation: Evaluation | None = None
    checkpoint: Checkpointing = Field(default_factory=Checkpointing)
    logging: Logging = Field(default_factory=Logging)
    machine: Machine = Field(default_factory=Machine)

    @field_validator("init_from", mode="before")
    @classmethod
    def _run_of(cls, value: Any) -> Any:
        return {"run": value} if isinstance(value, str) else value

    @field_validator("scheme", mode="before")
    @classmethod
    def _preset(cls, value: Any) -> Any:
        if not isinstance(value, (str, Mapping, Scheme.Config)):
            raise problem(f"expected a preset's name or a block of settings, got {shown(value)}")
        return {"preset": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _deals_out(self) -> Self:
        """Environments and batches have to be dealt out equally."""
        collectors, learners = self.collectors, self.scheme.gradient.workers
        if self.envs.count % collectors:
            raise problem(
                f"{self.envs.count} environments cannot be dealt out equally over {collectors} collectors "
                f"({counted(learners, 'gradient worker')} × {self.scheme.collection.workers}); choose a multiple of {collectors}",
                "envs.count",
            )
        if self.storage.batch % learners:
            raise problem(
                f"{self.storage.batch} columns cannot be dealt out equally over {learners} gradient workers; choose a multiple of {learners}",
                "storage.batch",
            )
        pull, fresh = self.columns_per_pull, self.fresh_columns
        if not fresh:
            pacing = self.scheme.pacing
            if pacing is not None and pacing.at_most is not None and pacing.at_most * self.steps < 1:
                raise problem(f"allows no update within {self.steps:,} env steps; raise it above {1 / self.steps:.1g}", "scheme.pacing.at_most")
            return self
        if self.scheme.collection.gather == 0:
            raise problem(
                "takes what is ready: it needs a storage whose batches need no new steps, replay with fraction: 1", "scheme.collection.gather"
            )
        if self.scheme.pacing is not None:
            text = "has no effect: the storage sets how often each step is learned from; it is for replay with fraction: 1"
            raise problem(text, "scheme.pacing")
        if pull % fresh and fresh % pull:
            raise problem(
                f"one batch takes {fresh} new columns from each gradient worker's share, a pull of the scheme brings {pull}: "
                "a batch has to be whole pulls or a pull whole batches; change storage.batch, envs.count or the scheme's workers",
                "storage.batch",
            )
        return self

    @model_validator(mode="after")
    def _each_collector_valid(self) -> Self:
        """What is laid over the experiment's blocks for single collectors has to fit there."""
        entries = self.scheme.collection.per_worker
        where = "scheme.collection.per_worker"
        if entries and self.collectors % len(entries):
            raise problem(f"{len(entries)} entries cannot be dealt out equally over {self.collectors} collectors", where)
        for index, entry in enumerate(entries):
            if taken := {"count", "name"} & entry.envs.keys() | {"name"} & entry.actor.keys():
                raise problem(f"{', '.join(sorted(taken))} cannot differ between collectors", f"{where}.{index}")
            try:
                self._changed_by(entry)
            except ConfigError as error:
                first = error.problems[0]
                raise problem(first.text, f"{where}.{index}.{dotted(first.path)}") from None
        return self

    def _changed_by(self, entry: PerWorker) -> Experiment:
        """The experiment as one collector has it, alone."""
        alone = Document({**self.to_dict(), "scheme": "local"}, {})
        return validate(type(self), merge(alone, Document({"envs": entry.envs, "actor": entry.actor}, {})), "the experiment")

    @property
    def collectors(self) -> int:
        """Collectors over all gradient workers."""
        return self.scheme.gradient.workers * self.scheme.collection.workers

    @property
    def columns_per_pull(self) -> int:
        """Environment columns that one pull of a gradient worker brings."""
        return self.envs.count // self.collectors * self.scheme.collection.taken

    @property
    def fresh_columns(self) -> int:
        """Columns of a gradient worker's share of a batch that were not learned from before."""
        storage: Storage = self.storage.build(batch=self.storage.batch // self.scheme.gradient.workers, generator=torch.Generator())
        return storage.fresh

    def steps_per_round(self, losses_per_batch: int) -> int:
        """Optimiser steps between two pulls: the unit of policy lag."""
        batches = max(1, self.columns_per_pull // self.fresh_columns) if self.fresh_columns else 1
        return losses_per_batch * batches * (self.scheme.gradient.workers if self.scheme.gradient.alone else 1)

    # --- files ---

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
        """The experiment in a file, with `key.path=value` overrides laid over it.

        Its folder becomes importable, for components of the user's own; for the file of a run, the folders that the run imported from too.

        Raises:
            ConfigError: all that is wrong with it, with file and line.
        """
        path = Path(path)
        for folder in (*RunDir(path.parent).import_from(), str(path.parent.resolve())):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        return validate(cls, document(path, overrides), str(path))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Experiment:
        """The experiment in plain data, as a file would hold it.

        Raises:
            ConfigError: all that is wrong with it.
        """
        return validate(cls, Document(dict(data), {}), "the experiment")

    def replace(self, **changes: Any) -> Experiment:
        """The experiment with some of its settings changed; a block of settings is laid over the old one as in a file.

        Raises:
            ConfigError: the result is not a valid experiment.
        """
        plain = {key: dump(value) if isinstance(value, Settings) else value for key, value in changes.items()}
        base = Document(self.to_dict(), {})
        return validate(type(self), merge(base, Document(plain, {})), "the experiment")

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` turns back into an equal experiment."""
        return dump(self)

    def save(self, path: str | Path) -> None:
        """Writes the resolved experiment; `load` gives an equal one."""
        Path(path).write_text(to_yaml(self.to_dict()), "utf-8")

    # --- runs ---

    def run(self, run_dir: str | Path | None = None, resume: bool = False, profile: bool = False) -> Result:
        """Trains to the end. `profile`: with a trace of what every worker did when, as trace.json.

        Raises:
            RunDirError: the directory holds another run.
            WorkerError, FloatingPointError, Interrupted: as `stream`.
        """
        run, directory = self.prepare(run_dir, resume, profile)
        if run is not None:
            for _ in run.stream():
                pass
            return Result(directory.path, run.updater.env_steps, run.last_row)
        return Result(directory.path, int(directory.read_info()["env_steps"]), {})

    def stream(self, run_dir: str | Path | None = None, resume: bool = False) -> Stream:
        """The same run, row by row, with settings that can be changed between two rows; leaving the loop ends it with a checkpoint."""
        return Stream(self, self.prepare(run_dir, resume)[0])

    def prepare(self, run_dir: str | Path | None = None, resume: bool = False, profile: bool = False) -> tuple[Run | None, RunDir]:
        """A run in its directory, ready to stream; None: `resume`, and it is finished already.

        Raises:
            RunDirError: the directory holds another run or cannot be written to, or `resume` without a directory.
        """
        if resume and run_dir is None:
            raise RunDirError("--resume needs --run-dir: which run is to go on?")
        directory = RunDir(Path(run_dir) if run_dir is not None else default_path(self.name, self.seed))
        if directory.used and not resume:
            raise RunDirError(f"{directory.path} is not empty; choose another --run-dir, or continue the run in it with --resume")
        plan = self.plan()
        if profile:
            plan = dataclasses.replace(plan, parts=dataclasses.replace(plan.parts, profile=True))
        if self.scheme.on_ray:
            from modrl.scheme.places.ray import check_address

            check_address(self.machine.ray.address)
        try:
            return self._resumed(plan, directory) if directory.used else self._begun(plan, directory), directory
        except OSError as error:
            raise RunDirError(f"cannot write to {directory.path}: {error.strerror}") from error

    def _begun(self, plan: Plan, directory: RunDir) -> Run:
        from modrl.tuning import tuned

        experiment, plan = self, self._with_initial_weights(plan)
        if found := tuned(plan):
            experiment = self.replace(machine=found)
            plan = _on(plan, experiment.machine)
        return Run(plan, directory, directory.begin(to_yaml(experiment.to_dict()), import_folders(self)), resume=False)

    def _with_initial_weights(self, plan: Plan) -> Plan:
        """The plan with the other run's weights, where the experiment begins with them.

        Raises:
            BadInput: there are none, or they do not fit.
        """
        return plan if self.init_from is None else dataclasses.replace(plan, initial=initial_weights(self.init_from, plan.parts.make_actor()))

    def _resumed(self, plan: Plan, directory: RunDir) -> Run | None:
        with directory.locked():
            info = directory.read_info()
            found = {name: value for name, value in _measured(directory).items() if getattr(self.machine, name) is None}
            experiment = self.replace(machine=found) if found else self
            if not checkpoint.found(directory.checkpoints):
                plan = self._with_initial_weights(plan)
            run = Run(_on(plan, experiment.machine), directory, info, resume=True)
            if run.finished:
                directory.write_info(info | {"status": "finished", "ended": info["ended"] or now()})
                return None
            warn_of_lost_changes(self, info.get("changes", []))
            run.other_settings = _other_settings(directory, experiment, {change["key"] for change in info.get("changes", [])})
            for line in run.other_settings:
                logger.warning("resuming with another setting: %s", line)
            directory.write_experiment(to_yaml(experiment.to_dict()))
            return run

    def plan(self) -> Plan:
        """All that a run needs; builds one environment to see its spaces, and the networks.

        Raises:
            BadInput: a device that does not exist, or parts that cannot work together.
        """
        try:
            return self._plan()
        except BadInput:
            raise
        except ValueError as error:  # from a component that was asked for what it cannot do
            raise BadInput(str(error)) from error

    def _plan(self) -> Plan:
        device = self.machine.torch_device()
        inference, elsewhere = self.scheme.collection.inference, self.scheme.collection.place == "ray" and self.machine.ray.address != "local"
        if inference != "collector" and inference.device is not None and not elsewhere:
            torch_device(inference.device, "scheme.collection.inference.device")
        if self.machine.precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise BadInput("machine.precision: this GPU has no bf16; use fp32")
        require_loggers(self.logging)
        if self.evaluation is not None and self.evaluation.video:
            require_video(self.envs, "evaluation.video")
        observation_space, action_space, action_repeat, first = _probe(self.envs)
        parts = Parts(
            seed=self.seed, envs=self.envs, actor=self.actor, algorithm=self.algorithm, storage=self.storage,
            observation_space=observation_space, action_space=action_space, machine=self.machine, collectors=self.collectors,
            gradient_workers=self.scheme.gradient.workers, steps_per_round=1, paths=tuple(path or str(Path.cwd()) for path in sys.path),
            own=tuple(import_folders(self)),
        )  # fmt: skip
        algorithm: Algorithm = parts.make_algorithm()
        _try(algorithm.actor, first)
        if inference != "collector" and type(algorithm.actor).infer is Actor.infer:
            raise BadInput(
                f"scheme.collection.inference: a server cannot ask {type(algorithm.actor).__name__}, which acts in one piece; "
                "give it infer() and choose(), the two halves of act(), or set inference: collector"
            )
        algorithm.check_share(self.storage.horizon, self.storage.batch // self.scheme.gradient.workers)
        losses = algorithm.num_losses
        parts = dataclasses.replace(
            parts, steps_per_round=self.steps_per_round(losses), max_staleness=self.scheme.collection.max_staleness,
            steps=self.steps, pacing=self._pacing(), env_restarts=self.scheme.faults.env_restarts, per_worker=self._per_worker(parts),
        )  # fmt: skip
        return Plan(self.steps, parts, self.optimizer, self.scheme, self.evaluation, self.checkpoint, self.logging, action_repeat, losses)

    def _pacing(self) -> tuple[float | None, float | None]:
        """The bounds on updates per env step as a gradient worker counts both: its own batches, and its own steps."""
        pacing, learners = self.scheme.pacing or Pacing(), self.scheme.gradient.workers
        scale = 1 if self.scheme.gradient.alone else learners  # every worker has its part in an update, or makes updates of its own
        return tuple(None if bound is None else bound * scale for bound in (pacing.at_least, pacing.at_most))  # type: ignore[return-value]

    def _per_worker(self, parts: Parts) -> tuple[tuple[Envs.Config, Actor.Config], ...]:
        """The settings of each collector's environments and actor, where they differ.

        Raises:
            BadInput: they are of other spaces or networks than the experiment's.
        """
        entries, result = self.scheme.collection.per_worker, []
        common = parts.make_actor().state_dict() if entries else {}
        for index, entry in enumerate(entries):
            where = f"scheme.collection.per_worker.{index}"
            changed = self._changed_by(entry)
            try:
                spaces = _probe(changed.envs)
            except BadInput as error:
                raise BadInput(f"{where}.{error}") from error
            if (spaces.observation_space, spaces.action_space) != (parts.observation_space, parts.action_space):
                raise BadInput(
                    f"{where}.envs: observations {spaces.observation_space} and actions {spaces.action_space}, but one actor is for all, "
                    f"and the experiment's are {parts.observation_space} and {parts.action_space}"
                )
            own = parts.make_actor(changed.actor).state_dict()
            if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in common.items()}:
                raise BadInput(f"{where}.actor: gives networks of other shapes than the experiment's; only settings that leave them alone can differ")
            if differ := [name for name in own if not torch.equal(own[name], common[name])]:
                raise BadInput(
                    f"{where}.actor: changes what {differ[0]} begins with, but each collector is given the experiment's weights in its place; "
                    "only settings that the weights do not hold can differ"
                )
            result.append((changed.envs, changed.actor))
        return tuple(result)


def _measured(directory: RunDir) -> dict[str, Any]:
    """What a run found out about its machine when it began: with other values its sums would be made in another order."""
    machine = read_file(directory.experiment).data.get("machine") if directory.experiment.exists() else None
    return {name: machine[name] for name in ("threads", "memory_format") if name in machine} if isinstance(machine, dict) else {}


def _other_settings(directory: RunDir, experiment: Experiment, told: set[str]) -> list[str]:
    """What differs from the settings that the run went on with so far, those apart that are told already: `key: before -> now`."""
    before = _flat(read_file(directory.experiment).data) if directory.experiment.exists() else {}
    now_ = _flat(experiment.to_dict())
    return [f"{key}: {old} -> {now_.get(key)}" for key, old in before.items() if key not in told and now_.get(key) != old]


def _flat(data: Any, at: str = "") -> dict[str, Any]:
    """Values by key path."""
    if not isinstance(data, dict) or not data:
        return {at: data}
    return {path: value for key, part in data.items() for path, value in _flat(part, f"{at}.{key}".lstrip(".")).items()}


def _on(plan: Plan, machine: Machine) -> Plan:
    return dataclasses.replace(plan, parts=dataclasses.replace(plan.parts, machine=machine))


def _probe(config: Envs.Config) -> Probe:
    """What the agent has to know of its environments.

    Raises:
        BadInput: they cannot be made; says what one raised, and where.
    """
    try:
        return probe(config)
    except EnvError as error:
        raise BadInput(f"envs: {error}") from error
    except Exception as error:  # an environment, its arguments or its wrappers may raise anything
        *_, last = traceback.extract_tb(error.__traceback__)
        if isinstance(error, ValueError) and Path(last.filename).is_relative_to(Path(__file__).parent):
            raise BadInput(str(error)) from error  # modrl's own word on the matter
        raise BadInput(f"envs: cannot be made with these settings: {raised(error)}") from error


@torch.no_grad()
def _try(actor: Actor, now: Timestep) -> None:
    """One step of the actor, so that one that cannot act is found before anything is started.

    Raises:
        BadInput: it cannot; says what it raised.
    """
    obs, first = tree_map(torch.from_numpy, (now.obs, now.first))
    try:
        with torch.random.fork_rng(devices=()):
            actor.to_env(actor.act(obs, first, actor.initial_memory(len(first))).action)
    except BadInput:
        raise
    except Exception as error:  # an actor's parts may raise anything
        raise BadInput(f"actor: cannot act on these observations: {raised(error)}") from error


def document(path: Path, overrides: Sequence[str] = ()) -> Document:
    """A file with its overrides and its scheme's preset laid together, each value with its origin.

    Raises:
        ConfigError: a file or an override is malformed, or no scheme has that name.
    """
    result = read_file(path)
    for text in overrides:
        result = merge(result, override(text))
    scheme = result.data.get("scheme", "local")
    block = {"preset": scheme} if isinstance(scheme, str) else scheme
    if not isinstance(block, dict):
        return result
    where = result.origins.get(("scheme", "preset"), result.origins.get(("scheme",), Origin(str(path))))
    folder = Path(where.source).parent if where.line is not None else Path()  # a command line names files from where it is typed
    try:
        expanded = expand(Document(block, {key[1:]: origin for key, origin in result.origins.items() if key[:1] == ("scheme",)}), folder)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError([Problem(("scheme",), str(error), where)], str(path)) from None
    origins = {("scheme", *key): origin for key, origin in expanded.origins.items()} | result.origins
    return Document({**result.data, "scheme": expanded.data}, origins)


def import_folders(settings: Settings) -> list[str]:
    """The folders that the user's own components are imported from."""
    folders: list[str] = []

    def visit(value: Any) -> None:
        if isinstance(value, Component.Config) and not is_builtin(value.owner):
            add(value.owner)
        if isinstance(value, Settings):
            for _, part in value:
                visit(part)
        elif isinstance(value, Mapping):
            for part in value.values():
                visit(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                visit(part)
        elif callable(value):
            add(value)
        elif isinstance(value, str) and ":" in value and value.split(":")[0] in sys.modules:
            add(sys.modules[value.split(":")[0]])

    def add(thing: Any) -> None:
        name = str(getattr(thing, "__module__", None) or getattr(thing, "__name__", ""))
        module = thing if inspect.ismodule(thing) else sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if file is None or "site-packages" in file:
            return
        folder = Path(file).resolve().parents[str(getattr(module, "__name__", "")).count(".") + (Path(file).name == "__init__.py")]
        if str(folder) not in folders:
            folders.append(str(folder))

    visit(settings)
    return folders
