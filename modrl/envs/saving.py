"""Saving and restoring one environment exactly: its own state, its generator, and the wrappers around it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from modrl.envs.restarts import Renewed

CARRIED = {
    "modrl.envs.member:Member": (),
    "gymnasium.wrappers.common:OrderEnforcing": (),
    "gymnasium.wrappers.common:PassiveEnvChecker": (),
    "gymnasium.wrappers.common:TimeLimit": ("_elapsed_steps",),
    "gymnasium.wrappers.atari_preprocessing:AtariPreprocessing": ("obs_buffer", "lives", "game_over"),
    "gymnasium.wrappers.stateful_observation:FrameStackObservation": ("obs_queue",),
    **{
        f"gymnasium.wrappers.{module}:{name}": ()
        for module, names in {
            "transform_action": ("ClipAction", "RescaleAction"),
            "transform_observation": (
                "DtypeObservation", "FilterObservation", "FlattenObservation", "GrayscaleObservation", "RescaleObservation", "ReshapeObservation",
                "ResizeObservation",
            ),
            "transform_reward": ("ClipReward",),
        }.items()
        for name in names
    },
    "gymnasium.envs.classic_control.acrobot:AcrobotEnv": ("state",),
    "gymnasium.envs.classic_control.cartpole:CartPoleEnv": ("state", "steps_beyond_terminated"),
    "gymnasium.envs.classic_control.continuous_mountain_car:Continuous_MountainCarEnv": ("state",),
    "gymnasium.envs.classic_control.mountain_car:MountainCarEnv": ("state",),
    "gymnasium.envs.classic_control.pendulum:PendulumEnv": ("state",),
    "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv": ("s",),
    "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv": ("s",),
}  # fmt: skip
"""What wrappers and environments of just these classes carry from one step to the next, once reset: attributes."""

ALE = "ale_py.env:AtariEnv"


def exact(env: gymnasium.Env) -> bool:
    """Whether the env and every wrapper around it can be saved: its class is known, or it offers `state()` and `restore(state)`."""
    return all(_class_of(layer) in CARRIED or _class_of(layer) == ALE or _saves(layer) for layer in _layers(env))


def state(env: gymnasium.Env) -> list[Any]:
    """Plain data, one entry for each layer from the outside in, then the generator's."""
    return [*(_state(layer) for layer in _layers(env)), env.unwrapped.np_random.bit_generator.state]


def restore(env: gymnasium.Env, saved: list[Any]) -> None:
    """Continues from what `state` gave; the env was reset before."""
    *layer_states, generator_state = saved
    for layer, layer_state in zip(_layers(env), layer_states, strict=True):
        _restore(layer, layer_state)
    env.unwrapped.np_random.bit_generator.state = generator_state


def _layers(env: gymnasium.Env) -> Iterator[gymnasium.Env]:
    while isinstance(env, gymnasium.Wrapper):
        if not isinstance(env, Renewed):  # there or not, as the restart's settings say
            yield env
        env = env.env
    yield env


def _class_of(layer: gymnasium.Env) -> str:
    return f"{type(layer).__module__}:{type(layer).__qualname__}"


def _saves(layer: gymnasium.Env) -> bool:
    return callable(getattr(layer, "state", None)) and callable(getattr(layer, "restore", None))


def _state(layer: Any) -> Any:
    known = _class_of(layer)
    if known == ALE:
        return np.frombuffer(layer.ale.cloneSystemState().serialize(), np.uint8)
    if known not in CARRIED:
        return layer.state()
    return {name: _plain(getattr(layer, name)) for name in CARRIED[known]}


def _restore(layer: Any, saved: Any) -> None:
    known = _class_of(layer)
    if known == ALE:
        from ale_py import ALEState

        layer.ale.restoreSystemState(ALEState(saved.tobytes()))
    elif known not in CARRIED:
        layer.restore(saved)
    else:
        for name in CARRIED[known]:
            setattr(layer, name, _like(getattr(layer, name), saved[name]))


def _plain(value: Any) -> Any:
    """A copy of it as plain data."""
    if isinstance(value, (list, tuple, deque)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return np.array(value) if isinstance(value, np.ndarray) else value


def _like(now: Any, saved: Any) -> Any:
    """What was saved, in the container that the attribute is now."""
    if isinstance(now, deque):
        return deque(_plain(saved), maxlen=now.maxlen)
    return type(now)(_plain(saved)) if isinstance(now, (list, tuple)) else _plain(saved)
