"""The collector: steps environments with an actor and cuts the experience into rollouts."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from modrl.agent.actors.base import Actor, Memory, Step
from modrl.envs.base import Envs, Timestep
from modrl.messages import Episode, Rollout, Tree, Weights
from modrl.scheme.compute import Compute, load
from modrl.scheme.inference import Answer, Client
from modrl.scheme.race import Race, Round
from modrl.scheme.stages import Stages
from modrl.seeding import restore
from modrl.tree import on_device, to_numpy, to_torch, tree_map


class Collector:
    """Acts on a snapshot of the weights, which changes only between rollouts; or on what an inference server says.

    With a `race` it stops early where enough others are done: the rest of its rollout is filler. With `stages` of a name it
    numbers its rollouts, from `serial` on.
    """

    def __init__(
        self,
        *,
        envs: Envs,
        actor: Actor,
        horizon: int,
        generator: torch.Generator,
        compute: Compute,
        race: Race | None = None,
        stages: Stages | None = None,
        serial: int = 0,
    ) -> None:
        self.envs = envs
        self.actor = actor.to(compute.device).eval()
        self.horizon = horizon
        self.generator = generator
        self.compute = compute
        self.race = race
        self.server: Client | None = None
        self.version = -1
        self.round: Round = (-1, 0)
        self.stages = stages or Stages()
        self.serial = serial  # of the next rollout, in a profile
        self.now: Timestep | None = None  # what the next action answers
        self.memory: Memory | None = None

    def serve(self, server: Client) -> None:
        """From now on, this server says what the actor would."""
        self.server = server

    def collect(self, weights: Weights) -> Rollout:
        """The next `horizon` steps [T, B] of this collector's environments, acted on these weights."""
        self.stages.begin()
        if self.server is None and weights.version != self.version:
            load(self.actor, weights.acting)
            self.version = weights.version
            self.stages.lap("load")
        self.round = (weights.version, self.round[1] + 1 if weights.version == self.round[0] else 0)
        if self.now is None or self.memory is None:
            self.now = self.envs.reset()
            self.memory = self.actor.initial_memory(len(self.now.first))
        recorder = _Recorder(self.horizon, self.now, self.memory)
        with self.compute.precision_scope():  # one for all steps: weights are cast once
            for slot in range(self.horizon):
                self._step(recorder, slot)
                if self.race is not None and self.race.over(self.round, slot + 1, self.horizon):
                    recorder.stop(slot + 1)
                    break
        if self.race is not None:
            self.race.board.finish(self.round)
        rollout = recorder.rollout(self.version, self.envs.counts())
        if self.stages.worker is None:
            self.stages.lap("record")
            return rollout._replace(seconds=self.stages.take())
        numbers = np.full(rollout.reward.shape, self.serial)
        self.stages.lap("record", (self.serial,))
        self.serial += 1
        return rollout._replace(seconds=self.stages.take(), laps=self.stages.take_laps(), behaviour={**rollout.behaviour, "rollout": numbers})

    def _step(self, recorder: _Recorder, slot: int) -> None:
        assert self.now is not None
        assert self.memory is not None
        self.stages.lap("record")
        step = self._act(self.now, self.memory)
        action = self.actor.to_env(step.action)
        self.stages.lap("act")
        with self.compute.foreign_scope():
            self.now = self.envs.step(action)
        self.stages.lap("env")
        self.memory = step.memory._replace(last_reward=self._tensors(self.now.reward))
        recorder.add(slot, to_numpy(step.action), to_numpy(step.behaviour), self.now)

    def _act(self, now: Timestep, memory: Memory) -> Step:
        if self.server is not None:
            return cast(Step, self.server.infer(now.obs, now.first, to_numpy(memory), self._choose))
        with self.compute.precision_scope():
            return self.actor.act(self._tensors(now.obs), self._tensors(now.first), memory, self.generator)

    def _choose(self, answer: Answer) -> Step:
        with self.compute.precision_scope():
            step = self.actor.choose(on_device(to_torch(answer.inference), self.compute.device), self.generator)
        return step._replace(behaviour={**step.behaviour, "version": torch.full((len(answer.inference.policy),), answer.version)})

    def _tensors(self, arrays: Tree) -> Tree:
        return on_device(tree_map(torch.from_numpy, arrays), self.compute.device)

    def state(self) -> dict[str, Any]:
        """Plain data to continue from: exactly where the envs can be saved, else with new episodes."""
        state: dict[str, Any] = {"generator": self.generator.get_state()}
        if self.envs.exact and self.now is not None:
            now = self.now._replace(final_obs=None, episodes=())
            state |= {"envs": self.envs.state(), "now": to_numpy(now)._asdict(), "memory": to_numpy(self.memory)._asdict()}
        return state

    def restore(self, state: dict[str, Any]) -> bool:
        """Continues from `state`; whether episodes go on where they were."""
        restore(self.generator, state["generator"])
        if "envs" not in state or len(state["now"]["first"]) != len(self.envs.numbers):
            return False
        self.envs.restore(state["envs"])
        self.now = Timestep(**tree_map(np.array, state["now"]))._replace(episodes=())
        self.memory = on_device(to_torch(Memory(**state["memory"])), self.compute.device)
        return True

    def close(self) -> None:
        """Ends the environments."""
        self.envs.close()


class _Recorder:
    """Fills the arrays of one rollout, slot by slot; everything is copied."""

    def __init__(self, horizon: int, now: Timestep, memory: Memory) -> None:
        width = len(now.first)
        self.obs = tree_map(lambda x: np.empty((horizon + 1, *x.shape), x.dtype), now.obs)
        self.first = np.empty((horizon + 1, width), bool)
        self.reward = np.empty((horizon, width), np.float32)
        self.terminated, self.truncated, self.valid = (np.empty((horizon, width), bool) for _ in range(3))
        self.memory = to_numpy(memory)
        self.actions: list[Tree] = []
        self.behaviours: list[dict[str, np.ndarray]] = []
        self.final_obs: list[Tree] = []
        self.episodes: list[Episode] = []
        self._observe(0, now)

    def _observe(self, slot: int, now: Timestep) -> None:
        tree_map(lambda store, x: np.copyto(store[slot], x), self.obs, now.obs)
        self.first[slot] = now.first

    def add(self, slot: int, action: Tree, behaviour: dict[str, np.ndarray], then: Timestep) -> None:
        """One step: the action of slot `slot`, and what it led to."""
        self.actions.append(action)
        self.behaviours.append(behaviour)
        self.reward[slot], self.terminated[slot], self.truncated[slot], self.valid[slot] = then.reward, then.terminated, then.truncated, then.valid
        if then.final_obs is not None:
            self.final_obs.append(then.final_obs)
        self.episodes.extend(then.episodes)
        self._observe(slot + 1, then)

    def stop(self, slots: int) -> None:
        """What follows these slots is filler: the observation stays, nothing counts."""
        tree_map(lambda store: np.copyto(store[slots + 1 :], store[slots]), self.obs)
        for array in (self.first[slots + 1 :], self.reward[slots:], self.terminated[slots:], self.truncated[slots:], self.valid[slots:]):
            array[:] = 0
        self.actions += self.actions[-1:] * (len(self.reward) - slots)
        self.behaviours += self.behaviours[-1:] * (len(self.reward) - slots)

    def rollout(self, version: int, counts: dict[str, float]) -> Rollout:
        """All of it."""
        version = int(self.behaviours[0]["version"].min()) if "version" in self.behaviours[0] else version
        return Rollout(
            obs=self.obs, first=self.first, action=tree_map(lambda *xs: np.stack(xs), *self.actions), reward=self.reward,
            terminated=self.terminated, truncated=self.truncated, valid=None if self.valid.all() else self.valid,
            final_obs=tree_map(lambda *xs: np.concatenate(xs), *self.final_obs) if self.final_obs else None,
            memory=self.memory, behaviour=tree_map(lambda *xs: np.stack(xs), *self.behaviours),
            version=version, episodes=tuple(self.episodes), counts=counts,
        )  # fmt: skip
