"""The collector: steps environments with an actor and cuts the experience into rollouts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch

from modrl.agent.actors.base import Actor, Memory, Step
from modrl.config import Component
from modrl.envs.base import Envs, Timestep
from modrl.messages import Rollout, Tree, Weights
from modrl.scheme.compute import Compute, State
from modrl.scheme.dump import NotFinite
from modrl.scheme.inference import Answer, Client
from modrl.scheme.race import Race, Round
from modrl.scheme.record import Recorder
from modrl.scheme.stages import Stages, take_logged
from modrl.seeding import restore
from modrl.tree import join, on_device, to_numpy, to_torch, tree_map


class Collector:
    """Acts on a snapshot of the weights, which changes only between rollouts; or on what an inference server says.

    `envs` stand side by side: where there are two, one steps while the actor acts for the other. With a `race` it stops early
    where enough others are done: the rest of its rollout is filler. With `stages` of a name it numbers its rollouts, from
    `serial` on. With a `discount`, by progress, it says of each step the discounted return of its episode so far, which rewards are scaled by.
    """

    def __init__(
        self,
        *,
        envs: Sequence[Envs],
        actor: Actor,
        horizon: int,
        generator: torch.Generator,
        compute: Compute,
        race: Race | None = None,
        stages: Stages | None = None,
        serial: int = 0,
        discount: Callable[[float], float] | None = None,
    ) -> None:
        self.lanes: list[Lane] = []
        for part in envs:
            start = self.lanes[-1].columns.stop if self.lanes else 0
            self.lanes.append(Lane(part, slice(start, start + len(part.numbers))))
        self.actor = actor.to(compute.device).eval()
        self._state = State(self.actor)
        self.horizon = horizon
        self.generator = generator
        self.compute = compute
        self.race = race
        self.server: Client | None = None
        self.version = -1
        self.round: Round = (-1, 0)
        self.stages = stages or Stages()
        self.serial = serial  # of the next rollout, in a profile
        self.discount = discount
        parts = [part for part in self.actor.modules() if isinstance(part, Component)]
        self._speakers: list[Component] = [*parts, *(lane.envs for lane in self.lanes)]
        self.returns = np.zeros(self.lanes[-1].columns.stop)  # discounted, of the running episodes

    def serve(self, server: Client) -> None:
        """From now on, this server says what the actor would."""
        self.server = server

    def collect(self, weights: Weights) -> Rollout:
        """The next `horizon` steps [T, B] of this collector's environments, acted on these weights."""
        self.stages.begin()
        if self.server is None and weights.version != self.version:
            self._state.load(weights.acting)
            self.version = weights.version
            self.stages.lap("load")
        self.round = (weights.version, self.round[1] + 1 if weights.version == self.round[0] else 0)
        recorder = self._recorder()
        with self.compute.precision_scope():  # one for all steps: weights are cast once
            for slot in range(self.horizon):
                self._step(recorder, slot)
                if self.race is not None and self.race.over(self.round, slot + 1, self.horizon):
                    recorder.stop(slot + 1)
                    break
            self._receive(recorder, self.lanes)
        if self.race is not None:
            self.race.board.finish(self.round)
        counts = Counter[str]()
        for lane in self.lanes:
            counts.update(lane.envs.counts())
        rollout = recorder.rollout(self.version, dict(counts))
        if logged := take_logged(self._speakers):
            rollout = rollout._replace(logged=logged)
        self._check(rollout)
        if self.discount is not None:
            rollout.behaviour["discounted_return"] = self._discounted(rollout, self.discount(weights.progress))
        if self.stages.worker is None:
            self.stages.lap("record")
            return rollout._replace(seconds=self.stages.take())
        numbers = np.full(rollout.reward.shape, self.serial)
        self.stages.lap("record", (self.serial,))
        self.serial += 1
        return rollout._replace(seconds=self.stages.take(), laps=self.stages.take_laps(), behaviour={**rollout.behaviour, "rollout": numbers})

    def _check(self, rollout: Rollout) -> None:
        places = np.argwhere(~np.isfinite(rollout.reward))
        if len(places):
            step, column = places[0].tolist()
            number = [number for lane in self.lanes for number in lane.envs.numbers][column]
            said = f"environment {number} gave a reward of {rollout.reward[step, column]}, in step {step} of a rollout of {self.horizon}"
            raise NotFinite(f"{said}; it was not learned from", {"rollout": rollout})

    def _discounted(self, rollout: Rollout, discount: float) -> np.ndarray:
        """Of each step what its episode's rewards come to so far [T, B], earlier ones discounted: R[t] = discount * R[t-1] + r[t]."""
        found = np.empty(rollout.reward.shape, np.float32)
        valid = np.ones_like(rollout.first[:-1]) if rollout.valid is None else rollout.valid
        for step, (first, reward, counts) in enumerate(zip(rollout.first[:-1], rollout.reward, valid, strict=True)):
            self.returns = np.where(counts, np.where(first, 0.0, self.returns) * discount + reward, self.returns)
            found[step] = self.returns
        return found

    def _recorder(self) -> Recorder:
        """Of a new rollout, which begins where the last one ended."""
        for lane in self.lanes:
            if not lane.begun:
                lane.now = lane.envs.reset()
                lane.memory = self.actor.initial_memory(len(lane.now.first))
                lane.begun = True
        recorder = Recorder(self.horizon, self.lanes[-1].columns.stop, self.lanes[0].envs, self.lanes[0].now)
        for lane in self.lanes:
            recorder.begin(lane.columns, lane.now, to_numpy(lane.memory))
        return recorder

    def _step(self, recorder: Recorder, slot: int) -> None:
        """One step of all environments. Of two lanes, one steps while the other is acted for, and goes on stepping when this returns."""
        together = self.server is not None  # a server waits for all its collectors' columns
        for lanes in [self.lanes] if together else [[lane] for lane in self.lanes]:
            self._receive(recorder, lanes)
            self.stages.lap("record")
            for lane, step in zip(lanes, self._act(lanes), strict=True):
                action = self.actor.to_env(step.action)
                self.stages.lap("act")
                with self.compute.foreign_scope():
                    lane.envs.send(action)
                self.stages.lap("env")
                lane.memory, lane.slot = step.memory, slot
                recorder.act(to_numpy(step.action), to_numpy(step.behaviour))
        if self.race is not None:  # which wants to know how much is done
            self._receive(recorder, self.lanes)

    def _receive(self, recorder: Recorder, lanes: Sequence[Lane]) -> None:
        """Waits for the steps that these lanes are in, if any."""
        for lane in lanes:
            if lane.slot is None:
                continue
            self.stages.lap("record")
            with self.compute.foreign_scope():
                lane.now = lane.envs.receive()
            self.stages.lap("env")
            lane.memory = lane.memory._replace(last_reward=self._tensors(lane.now.reward))
            recorder.add(lane.slot, lane.columns, lane.now)
            lane.slot = None

    def _act(self, lanes: Sequence[Lane]) -> list[Step]:
        if self.server is not None:
            obs, first, memory = join([(lane.now.obs, lane.now.first, to_numpy(lane.memory)) for lane in lanes])
            return cast(list[Step], self.server.infer(obs, first, memory, self._choose))
        with self.compute.precision_scope():
            return [self.actor.act(self._tensors(lane.now.obs), self._tensors(lane.now.first), lane.memory, self.generator) for lane in lanes]

    @torch.no_grad()
    def _choose(self, answer: Answer) -> list[Step]:
        steps = []
        for lane in self.lanes:
            inference = tree_map(lambda x, columns=lane.columns: x[columns], answer.inference)
            with self.compute.precision_scope():
                step = self.actor.choose(on_device(to_torch(inference), self.compute.device), self.generator)
            version = torch.full((len(inference.policy),), answer.version)
            steps.append(step._replace(behaviour={**step.behaviour, "version": version}))
        return steps

    def _tensors(self, arrays: Tree) -> Tree:
        return tree_map(lambda x: torch.from_numpy(x).to(self.compute.device), arrays)

    def state(self) -> dict[str, Any]:
        """Plain data to continue from: exactly where the envs can be saved, else with new episodes."""
        state: dict[str, Any] = {"generator": self.generator.get_state(), "returns": self.returns.copy()}
        if all(lane.envs.exact and lane.begun for lane in self.lanes):
            state["lanes"] = [lane.state() for lane in self.lanes]
        return state

    def restore(self, state: dict[str, Any]) -> bool:
        """Continues from `state`; whether episodes go on where they were."""
        restore(self.generator, state["generator"])
        if [len(lane["now"]["first"]) for lane in state.get("lanes", ())] != [len(lane.envs.numbers) for lane in self.lanes]:
            return False
        for lane, saved in zip(self.lanes, state["lanes"], strict=True):
            lane.envs.restore(saved["envs"])
            lane.now = Timestep(**tree_map(np.array, saved["now"]))._replace(episodes=())
            lane.memory = on_device(to_torch(Memory(**saved["memory"])), self.compute.device)
            lane.begun = True
        self.returns = np.array(state.get("returns", self.returns))
        return True

    def close(self) -> None:
        """Ends the environments."""
        with contextlib.ExitStack() as stack:
            for lane in self.lanes:
                stack.callback(lane.envs.close)


class Lane:
    """Environments that step together, and where they are."""

    now: Timestep  # what the next action answers
    memory: Memory

    def __init__(self, envs: Envs, columns: slice) -> None:
        self.envs = envs
        self.columns = columns  # of the collector's
        self.begun = False  # whether it is anywhere
        self.slot: int | None = None  # that of the step they are in

    def state(self) -> dict[str, Any]:
        """Plain data to continue from."""
        now = self.now._replace(final_obs=None, episodes=())
        return {"envs": self.envs.state(), "now": to_numpy(now)._asdict(), "memory": to_numpy(self.memory)._asdict()}
