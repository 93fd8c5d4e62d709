"""Gymnasium environments: `envs: {name: gym, id: CartPole-v1, count: 32}`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NoReturn, Self, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import FrameStackObservation
from pydantic import Field, WithJsonSchema, field_serializer, field_validator, model_validator

from modrl.config import ADAPTERS, load_object
from modrl.envs import saving
from modrl.envs.factory import Factory, named, register, registered, registration, written
from modrl.envs.processes import Processes
from modrl.envs.restarts import Budget, Renewed
from modrl.envs.vector import Vector
from modrl.messages import Tree

Function = Annotated[Callable[..., Any], WithJsonSchema({"type": "string", "pattern": r"^[\w.]+:[\w.]+$"})]


class Gym(Vector, name="gym"):
    """Environments that follow gymnasium's interface: in this thread, in processes, or in the env's own vector version."""

    class Config(Vector.Config):
        id: str | Function
        """A registered id, `module:Id` (imports the module first), `package.module:function`, or in Python any function that gives an env."""
        kwargs: dict[str, Any] = Field({})
        """Arguments of the environment."""
        vectorization: Literal["sync", "async", "vector_entry_point"] = "sync"
        """One after another here, each in its own process, or the env's own vector version (which has one seed for all its columns)."""
        wrappers: list[str | dict[str, Any] | Function] = Field([])
        """Innermost first: `package.module:Class`, a block {name: package.module:Class, argument: value}, or in Python a function of the env."""
        max_episode_steps: int | None = Field(None, ge=1)
        """Truncates after so many steps; null: as registered."""
        start_method: Literal["fork", "forkserver", "spawn"] | None = None
        """How the processes of `async` start; null: as Python's multiprocessing does."""

        @field_validator("id", mode="before")
        @classmethod
        def _find(cls, value: Any) -> Any:
            if not isinstance(value, str) and not callable(value):
                raise ValueError(f"expected an id, a function's name or a function, got {value!r}")
            return named(value) if isinstance(value, str) else value

        @field_validator("wrappers", mode="before")
        @classmethod
        def _find_each(cls, value: Any) -> Any:
            return [_known_wrapper(entry) for entry in value] if isinstance(value, list) else value

        @field_serializer("id")
        def _write(self, value: Any) -> Any:
            return written(value)

        @field_serializer("wrappers")
        def _write_each(self, value: list[Any]) -> list[Any]:
            return [written(entry) for entry in value]

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if self.vectorization == "vector_entry_point" and self.wrappers:
                raise ValueError("wrappers: cannot take effect with vectorization 'vector_entry_point'; choose sync or async")
            if self.vectorization == "vector_entry_point" and not isinstance(self.id, str):
                raise ValueError("vectorization: 'vector_entry_point' needs a registered id")
            if self.start_method is not None and self.vectorization != "async":
                raise ValueError(f"start_method: takes effect with vectorization 'async' only, not {self.vectorization!r}")
            return self

        @property
        def overlaps(self) -> bool:
            return self.vectorization == "async"

        def showing(self) -> Self:
            """One after another here, drawn into arrays."""
            return self.model_copy(update={"kwargs": {**self.kwargs, "render_mode": "rgb_array"}, "vectorization": "sync", "start_method": None})

        def __getstate__(self) -> dict[Any, Any]:
            return {**super().__getstate__(), "registration": registration(self.id)}

        def __setstate__(self, state: dict[Any, Any]) -> None:
            register(state.pop("registration"))
            super().__setstate__(state)

    config: Config

    def make(self) -> VectorEnv:
        config = self.config
        self.stack = _stack(config.wrappers)
        if config.vectorization == "vector_entry_point":
            return _own_vector(config, len(self.numbers))
        members = [Factory(config.id, config.kwargs, config.wrappers, config.max_episode_steps, number) for number in self.numbers]
        factories = members if self.budget is None else [partial(Renewed, member, self.budget) for member in members]
        if config.vectorization == "async":
            return Processes(factories, self.numbers, config.start_method)
        vector = SyncVectorEnv([_Given(env) for env in _make_all(factories)], copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        self.exact = all(saving.exact(env) for env in vector.envs)
        return vector

    def make_budget(self, restarts: int) -> Budget:
        return Budget(restarts, self.config.start_method)

    def begin(self, action: Tree) -> None:
        if isinstance(self.vector, Processes):
            self.vector.step_async(action)
        else:
            super().begin(action)

    def finish(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self.vector.step_wait() if isinstance(self.vector, Processes) else super().finish()

    def seed(self) -> Any:
        if self.config.vectorization == "vector_entry_point":  # one generator for all columns
            return int(np.random.SeedSequence(self.seeds).generate_state(1)[0])
        return super().seed()

    def frame(self) -> np.ndarray:
        shown = self._members()[0].render()
        if not isinstance(shown, np.ndarray):
            raise NotImplementedError(f"{self.config.id} cannot be drawn: its render() gave {type(shown).__name__}")
        return shown

    def state(self) -> Any:
        if not self.exact:
            return super().state()
        envs = [saving.state(env) for env in self._members()]
        restarts = [env.restarts if isinstance(env, Renewed) else 0 for env in self._members()]
        return {"envs": envs, "restarts": restarts, "returns": self.returns.copy(), "lengths": self.lengths.copy()}

    def restore(self, state: Any) -> None:
        if not self.exact:
            super().restore(state)
        if len(state["envs"]) != len(self.numbers):
            raise ValueError(f"expected the state of {len(self.numbers)} envs, got that of {len(state['envs'])}")
        self.reset()  # the wrappers want to have seen one
        for env, saved, restarts in zip(self._members(), state["envs"], state["restarts"], strict=True):
            saving.restore(env, saved)
            if isinstance(env, Renewed):
                env.restarts = restarts
        self.returns[:] = state["returns"]
        self.lengths[:] = state["lengths"]

    def _members(self) -> list[gymnasium.Env]:
        return cast(SyncVectorEnv, self.vector).envs


def _no_envs(name: str, found: Any, settings: dict[str, Any]) -> NoReturn:
    raise ValueError(f"{name!r} is not derived from modrl's Envs; an environment of gymnasium's interface is {{name: gym, id: {name}}}")


ADAPTERS["envs"] = _no_envs


class _Given:
    """A factory of what is made already."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.env = env

    def __call__(self) -> gymnasium.Env:
        return self.env


def _make_all(factories: Sequence[Callable[[], gymnasium.Env]]) -> list[gymnasium.Env]:
    """One env of each factory; if one fails, the others are closed."""
    made: list[gymnasium.Env] = []
    try:
        for factory in factories:
            made.append(factory())
    except BaseException:
        for env in made:
            env.close()
        raise
    return made


def _own_vector(config: Gym.Config, width: int) -> VectorEnv:
    """The env's own vector version.

    Raises:
        ValueError: it has none, or one that does not give the raw reward.
    """
    spec = registered(cast(str, config.id))
    if spec.vector_entry_point is None:
        raise ValueError(f"envs.vectorization: {spec.id} has no vector version of its own; choose sync or async")
    if spec.id.startswith("ALE/"):
        raise ValueError(f"envs.vectorization: the vector version of {spec.id} changes the task; use envs {{name: atari, game: {spec.id}}}")
    kwargs = dict(config.kwargs)
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    return gymnasium.make_vec(spec, width, vectorization_mode="vector_entry_point", **kwargs)


def _stack(wrappers: Sequence[Any]) -> int:
    """How many frames an observation is a stack of: where gymnasium's own wrapper is the outermost one, it says so."""
    match list(wrappers[-1:]):
        case [{"name": str() as name, "stack_size": int() as size}] if load_object(name) is FrameStackObservation:
            return size
    return 1


def _known_wrapper(entry: Any) -> Any:
    """The entry, checked; a name alone becomes what it names."""
    if callable(entry):
        return entry
    if isinstance(entry, str):
        return load_object(entry)
    if not (isinstance(entry, dict) and isinstance(entry.get("name"), str)):
        raise ValueError(f"expected a wrapper as package.module:Class, or as a block with that as its name, got {entry!r}")
    load_object(entry["name"])
    return entry
