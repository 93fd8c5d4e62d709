"""From what a user names to a function that makes one environment, in this process or in another."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from modrl.config import import_module, load_object, module_name, nearest
from modrl.envs.member import Member


def registered(name: str) -> EnvSpec:
    """What gymnasium knows under an id, `Id` or `module:Id`; the module is imported first.

    Raises:
        ValueError: it knows no such id; names the nearest.
    """
    module, _, env_id = name.rpartition(":")
    try:
        _import_for(module, env_id)
    except ValueError as error:
        raise ValueError(f"envs.id: {error}") from error
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    latest = [known for known in gymnasium.registry if known.rpartition("-v")[0] == env_id]  # without its version
    meant = max(latest, key=lambda known: int(known.rpartition("-v")[2]), default=None) or nearest(env_id, gymnasium.registry)
    hint = f"did you mean {meant!r}? " if meant else ""
    raise ValueError(
        f"envs.id: no environment is registered as {env_id!r}; {hint}"
        "An environment of your own is named module:Id, where importing the module registers it, or package.module:function"
    )


def _import_for(module: str, env_id: str) -> None:
    if module:
        import_module(module, f"{module}:{env_id}")
    elif env_id.startswith("ALE/") or "NoFrameskip" in env_id:
        import ale_py  # registers its ids

        gymnasium.register_envs(ale_py)


def named(value: str) -> Any:
    """What `package.module:function` names; a `module:Id` of gymnasium's, and an id alone, stay text.

    Raises:
        ValueError: it can be neither.
    """
    module, colon, name = value.rpartition(":")
    if not colon:
        return value
    if "<" in value:
        raise ValueError(f"{value!r} stands for a function that only the script that made it knows; put it into a module and name that")
    try:
        found = load_object(value)
    except ValueError:
        _import_for(module, name)
        if name in gymnasium.registry:
            return value
        if any(not (c.isalnum() or c in "_.") for c in name):  # an id's spelling: refused when made, with the nearest id
            return value
        raise
    return found if callable(found) else value


def written(value: Any) -> Any:
    """How a callable stands in a file; anything else stays."""
    if not callable(value):
        return value
    name = getattr(value, "__qualname__", f"<{type(value).__name__}>")
    return f"{module_name(value)}:{name}"


def registration(name: Any) -> bytes | None:
    """An id's registration, to take along to a process that does not know it."""
    spec = gymnasium.registry.get(name.rpartition(":")[2]) if isinstance(name, str) else None
    return None if spec is None else cloudpickle.dumps(spec)


def register(data: bytes | None) -> None:
    """Registers what `registration` gave, unless the id is known here."""
    if data is not None:
        spec = cloudpickle.loads(data)
        gymnasium.registry.setdefault(spec.id, spec)


class Factory:
    """Makes the environment of one global number; travels to other processes by cloudpickle."""

    def __init__(
        self, source: str | Callable[..., gymnasium.Env], kwargs: dict[str, Any], wrappers: Sequence[Any], max_episode_steps: int | None, number: int
    ) -> None:
        self.source = registered(source) if isinstance(source, str) else source  # an id may be unknown where it is made
        self.kwargs = kwargs
        self.wrappers = [_wrapper(entry) for entry in wrappers]
        self.max_episode_steps = max_episode_steps
        self.number = number
        self.home = os.getpid()

    def __call__(self) -> Member:
        if isinstance(self.source, EnvSpec):
            env = gymnasium.make(self.source, max_episode_steps=self.max_episode_steps, **self.kwargs)
        else:
            env = self.source(**self.kwargs)
            if not isinstance(env, gymnasium.Env):
                given = type(env).__name__
                raise TypeError(f"envs.id: {written(self.source)} gave {given}, expected a gymnasium.Env; wrap an older env's interface first")
            if self.max_episode_steps is not None:
                env = TimeLimit(env, self.max_episode_steps)
        for wrap in self.wrappers:
            env = wrap(env)
        return Member(env, self.number, remote=os.getpid() != self.home)


def _wrapper(entry: Any) -> Callable[[gymnasium.Env], gymnasium.Env]:
    """A wrapper's entry (a callable, `package.module:Class` or a block with `name` and arguments) as a function of the env."""
    if callable(entry):
        return entry
    block = {"name": entry} if isinstance(entry, str) else dict(entry)
    wrap = block.pop("name")
    wrap = load_object(wrap) if isinstance(wrap, str) else wrap
    return lambda env: wrap(env, **block)
