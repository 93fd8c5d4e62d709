"""Numbers that go wrong: the run stops before they are applied, says where they began, and keeps what computes them again."""

from __future__ import annotations

import json
import re

import gymnasium
import pytest
import torch

from modrl import checkpoint
from modrl.agent.actors import MLP
from modrl.agent.algorithms import IMPALA, PPO
from modrl.config import BadInput
from modrl.replay import replay
from modrl.scheme.places.base import WorkerError
from tests.runs import small, state_of, table

PPO_OF_FOUR = {"name": f"{__name__}:SickPPO", "epochs": 2, "minibatches": 2, "limit": 4.5e-3}
HERE = f"{__name__}:"


class SickLayer(MLP, name="sick_layer"):
    """Gives nan to the learner once its bias, which begins at 0, has moved far enough."""

    class Config(MLP.Config):
        limit: float = 4.5e-3

    def __init__(self, config, *, space):
        super().__init__(config, space=space)
        torch.nn.init.zeros_(self.layers[0].bias)

    def forward(self, x):
        features = super().forward(x)
        sick = torch.is_grad_enabled() and self.layers[0].bias.abs().max() > self.config.limit
        return features * float("nan") if sick else features


class SickTerm(IMPALA, name="sick_term"):
    """A loss term that is infinite at one step once the run is half done."""

    class Config(IMPALA.Config):
        sick: float = 0.0

    def terms(self, batch, out):
        extra = torch.zeros_like(batch.reward)
        extra[2, 1] = torch.inf if self.config.sick > 0.5 else 0.0
        return super().terms(batch, out) | {"extra": extra}


class SickGradient(IMPALA, name="sick_gradient"):
    """A finite loss whose gradient is not: the square root of 0, of which 0 is taken."""

    def terms(self, batch, out):
        value = out.value[:-1]
        return super().terms(batch, out) | {"extra": torch.where(value > 1e9, (value * 0).sqrt(), 0.0)}


class SickPPO(PPO, name="sick_ppo"):
    """PPO with a term that is nan once the actor's first bias has moved far enough from where it began."""

    class Config(PPO.Config):
        limit: float = 0.0

    def __init__(self, config, **parts):
        super().__init__(config, **parts)
        self.bias = self.actor.trunk.encoder.torsos[0].layers[0].bias
        self.start = self.bias.detach().clone()

    def terms(self, batch, out):
        moved = (self.bias - self.start).abs().max() > self.config.limit
        return super().terms(batch, out) | {"extra": torch.where(moved, torch.nan, torch.zeros_like(batch.reward))}


class Sick(torch.optim.SGD):
    """Makes the weights nan in its third step."""

    def step(self, closure=None):
        super().step(closure)
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 3:
            for parameter in self.param_groups[0]["params"]:
                parameter.data.fill_(torch.nan)


class Bad(gymnasium.Env):
    """Pays, or shows, nan in its 23rd step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, what):
        self.what, self.steps = what, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        wrong = torch.nan if self.steps == 23 else 0.0
        obs = self.observation_space.sample() + (wrong if self.what == "obs" else 0)
        return obs.astype("float32"), 1.0 + (wrong if self.what == "reward" else 0), self.steps % 10 == 0, False, {}


def bad(what):
    return {"envs": {"name": "gym", "id": f"{HERE}Bad", "count": 8, "kwargs": {"what": what}}}


def torso(**settings):
    return {"actor": {"name": "actor_critic", "torso": {"name": f"{HERE}SickLayer", "hidden": [16], **settings}}}


CASES = {
    "layer": (torso(), r"a layer: actor\.trunk\.encoder\.torsos\.0 \(SickLayer\) gives nan at \[0, 0\] of \[48, 16\]"),
    "term": ({"algorithm": {"name": f"{HERE}SickTerm", "sick": {"linear": [0, 1]}}}, r"the loss: term extra is inf at \[2, 1\] of \[5, 8\]"),
    "gradient": (
        {"algorithm": {"name": f"{HERE}SickGradient"}},
        r"the gradient of a finite loss: those of actor\.\S+ and of \d+ other parameters are not finite: it begins in SqrtBackward0",
    ),
    "batch": (bad("obs"), r"the batch: obs is nan at \[3, 0, 0\] of \[6, 8, 3\]"),
}


def fails(experiment, folder):
    with pytest.raises(WorkerError) as caught:
        experiment.run(folder)
    return caught.value


@pytest.mark.parametrize("scheme", ["local", "overlapped", "dppo"])
@pytest.mark.parametrize("case", CASES)
def test_where_it_began_is_said_kept_and_computed_again(case, scheme, tmp_path):
    changes, found = CASES[case]
    if scheme == "dppo":
        changes = {**changes, "scheme": {"preset": "dppo", "collection": {"place": "here"}, "gradient": {"place": "thread"}}}
        found = found.replace("48", "24").replace("5, 8", "5, 4").replace("6, 8", "6, 4")
    else:
        changes = {**changes, "scheme": scheme}
    error = fails(small(**changes), tmp_path / "run")
    assert error.worker.startswith("gradient worker")
    again = replay(tmp_path / "run")
    assert again.worker == error.worker
    assert re.search(found, again.where), again.where
    assert re.search(found, str(error)), str(error)


def test_nothing_of_it_is_written_and_the_run_says_that_it_failed(tmp_path):
    fails(small(**torso()), tmp_path / "run")
    assert all(tensor.isfinite().all() for tensor in state_of(tmp_path / "run")["updater"]["acting"].values())
    assert all(value == value for row in table(tmp_path / "run") for value in row.values() if value is not None)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_weights_that_are_not_finite_are_not_written(tmp_path):
    settings = {"optimizer": {"name": f"{HERE}Sick", "lr": 1e-3}, "checkpoint": {"every": 1, "keep": 9}}
    with pytest.raises(WorkerError, match=r"the weights: actor\.\S+ is nan at \[0"):
        small(**settings).run(tmp_path / "run")
    assert [path.stem for path in checkpoint.found(tmp_path / "run" / "checkpoints")] == ["40", "80"]
    assert all(tensor.isfinite().all() for tensor in state_of(tmp_path / "run")["updater"]["acting"].values())


def test_a_minibatch_is_computed_again_on_the_weights_of_its_own(tmp_path):
    """Not the first loss of a batch, for the weights move by 1e-3 with each: shuffled as it was, after a first one on older weights."""
    fails(small(algorithm=PPO_OF_FOUR), tmp_path / "run")
    dump = checkpoint.load(checkpoint.found(tmp_path / "run" / "dumps")[0])
    assert dump["loss"] > 0
    assert "term extra is nan" in replay(tmp_path / "run").where


def test_a_reward_that_is_not_finite_is_of_an_environment(tmp_path):
    error = fails(small(**bad("reward"), scheme="overlapped"), tmp_path / "run")
    assert error.worker == "collector 0"
    assert "environment 0 gave a reward of nan, in step 2 of a rollout of 5; it was not learned from" in str(error)
    assert replay(tmp_path / "run").where == "the rollout: reward is nan at [2, 0] of [5, 8]"


def test_computed_again_under_other_settings_it_may_be_finite(tmp_path, modrl):
    fails(small(**torso()), tmp_path / "run")
    status, out, _ = modrl("replay", tmp_path / "run")
    assert (status, "of gradient worker" in out, "not finite, computed again: a layer" in out) == (0, True, True)
    status, out, _ = modrl("replay", tmp_path / "run", "actor.torso.limit=1")
    assert (status, "computed again, all is finite" in out) == (1, True)


def test_what_is_no_dump_is_refused(tmp_path):
    small(steps=80).run(tmp_path / "run")
    with pytest.raises(BadInput, match="expected a dump, or a run's directory with one"):
        replay(tmp_path / "run")
    with pytest.raises(BadInput, match="expected a dump of a run"):
        replay(checkpoint.found(tmp_path / "run" / "checkpoints")[0])
    fails(small(**torso()), tmp_path / "sick")
    dump = checkpoint.found(tmp_path / "sick" / "dumps")[0]
    with pytest.raises(BadInput, match="does not fit the experiment"):
        replay(dump, ["actor.torso.hidden=[8]"])
    (tmp_path / "sick" / "experiment.yaml").unlink()
    with pytest.raises(BadInput, match="leave a dump in its run's directory"):
        replay(dump)
