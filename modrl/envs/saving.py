"""Saving and restoring one environment exactly: its own state, its generator, and the wrappers around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from modrl.envs.member import Member
from modrl.envs.restarts import Renewed

STATELESS = (Member, OrderEnforcing, PassiveEnvChecker)
"""Wrappers that carry nothing from one step to the next, once reset."""


def exact(env: gymnasium.Env) -> bool:
    """Whether the env, and every wrapper that carries something along, offers `state()` and `restore(state)`."""
    return all(isinstance(layer, (*STATELESS, TimeLimit)) or _saves(layer) for layer in _layers(env))


def state(env: gymnasium.Env) -> list[Any]:
    """Plain data, one entry for each layer from the outside in, then the generator's."""
    generator = env.unwrapped.np_random.bit_generator
    return [*(_layer_state(layer) for layer in _layers(env)), generator.state]


def restore(env: gymnasium.Env, saved: list[Any]) -> None:
    """Continues from what `state` gave; the env was reset before."""
    *layer_states, generator_state = saved
    for layer, layer_state in zip(_layers(env), layer_states, strict=True):
        if isinstance(layer, TimeLimit):
            layer._elapsed_steps = layer_state
        elif not isinstance(layer, STATELESS):
            layer.restore(layer_state)  # type: ignore[attr-defined]
    env.unwrapped.np_random.bit_generator.state = generator_state


def _layers(env: gymnasium.Env) -> Iterator[gymnasium.Env]:
    while isinstance(env, gymnasium.Wrapper):
        if not isinstance(env, Renewed):  # there or not, as the restart's settings say
            yield env
        env = env.env
    yield env


def _saves(layer: gymnasium.Env) -> bool:
    return callable(getattr(layer, "state", None)) and callable(getattr(layer, "restore", None))


def _layer_state(layer: gymnasium.Env) -> Any:
    if isinstance(layer, TimeLimit):
        return layer._elapsed_steps
    return None if isinstance(layer, STATELESS) else layer.state()  # type: ignore[attr-defined]
