"""Every example runs, says the same in YAML and in Python, and goes through a file unchanged."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from modrl.agent.actors import LSTM, MLP, ActorCritic, Inference, Shallow
from modrl.agent.algorithms import A2C, IMPALA, PPO
from modrl.agent.optimizers import Adam, Linear, RMSProp
from modrl.agent.storages import Fresh
from modrl.envs import Atari, Gym
from modrl.experiment import Experiment
from modrl.settings import Checkpointing, Evaluation
from tests.runs import table

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = sorted(EXAMPLES.glob("*.yaml"))


def module(name):
    """An example's module, importable by its own name as from its experiment file."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def cartpole(**changes):
    return {
        "steps": 300_000, "envs": Gym.Config(id="CartPole-v1", count=8),
        "actor": ActorCritic.Config(torso=MLP.Config(hidden=[128, 128]), value="separate", init="orthogonal"),
        "algorithm": IMPALA.Config(discount=0.995, entropy_cost=0.1, reduction="mean", reward="none"), "optimizer": Adam.Config(lr=Linear(1.5e-3, 0), max_grad_norm=0.5),
        "storage": Fresh.Config(horizon=32, batch=8), **changes,
    }  # fmt: skip


def twins():
    """The Python twin of every YAML example."""
    narrow = ActorCritic.Config(torso=MLP.Config(hidden=[64, 64]), value="separate", init="orthogonal")
    calm, fourier, chase = module("custom_algorithm").CalmIMPALA, module("custom_torso").Fourier, module("custom_env").Chase
    exploring = module("custom_exploration").Exploring
    ladder = {"workers": 4, "per_worker": [{"actor": {"explore": explore}} for explore in (0.2, 0.1, 0.05, 0.0)]}
    return {
        "cartpole_impala": Experiment(name="cartpole_impala", **cartpole()),
        "pong_impala": Experiment(
            name="pong_impala", seed=1, steps=50_000_000, envs=Atari.Config(game="pong", count=32),
            actor=ActorCritic.Config(torso="shallow", last_action=True, last_reward=True), algorithm=IMPALA.Config(entropy_cost=0.01),
            optimizer=RMSProp.Config(lr=Linear(6e-4, 0), eps=0.01, max_grad_norm=40), storage=Fresh.Config(horizon=20, batch=32),
            scheme="impala", evaluation=Evaluation(every=1_000_000, episodes=10), checkpoint=Checkpointing(every="10min", keep=3),
        ),
        "pong_monobeast": Experiment(
            name="pong_monobeast", steps=100_000, envs=Atari.Config(game="pong", count=8),
            actor=ActorCritic.Config(torso="nature", last_action=True, last_reward=True), algorithm=IMPALA.Config(entropy_cost=0.0006),
            optimizer=RMSProp.Config(lr=Linear(4.8e-4, 0), eps=0.01, max_grad_norm=40), storage=Fresh.Config(horizon=80, batch=8), scheme="overlapped",
        ),
        "pong_a2c": Experiment(
            name="pong_a2c", steps=10_000_000, envs=Atari.Config(game="pong", count=16), actor=ActorCritic.Config(torso="nature", init="orthogonal"),
            algorithm=A2C.Config(reward="clip"), optimizer=RMSProp.Config(lr=Linear(7e-4, 0), eps=1e-5, max_grad_norm=0.5), storage=Fresh.Config(horizon=5, batch=16),
        ),
        "pong_fast": Experiment(
            name="pong_fast", steps=1_600_000, envs=Atari.Config(game="pong", count=16, life_loss=False),
            actor=ActorCritic.Config(torso=Shallow.Config(standardize=True), init="orthogonal"),
            algorithm=PPO.Config(clip=0.15, epochs=3, minibatches=8, entropy_cost=Linear(0.01, 0.001), reward="clip"),
            optimizer=Adam.Config(lr=Linear(6e-4, 0), eps=1e-5, max_grad_norm=0.5), storage=Fresh.Config(horizon=128, batch=16),
            scheme={"preset": "overlapped", "collection": {"ahead": 1}}, machine={"precision": "bf16", "memory_format": "contiguous"},
        ),
        "cartpole_ppo": Experiment(name="cartpole_ppo", **cartpole(
            steps=100_000, actor=narrow, algorithm=PPO.Config(epochs=10, entropy_cost=0),
            optimizer=Adam.Config(lr=Linear(1e-3, 0), eps=1e-5, max_grad_norm=0.5), storage=Fresh.Config(horizon=64, batch=8),
        )),
        "pendulum_ppo": Experiment(name="pendulum_ppo", **cartpole(
            envs=Gym.Config(id="Pendulum-v1", count=8), actor=narrow, algorithm=PPO.Config(discount=0.95, epochs=10, minibatches=32, entropy_cost=0),
            optimizer=Adam.Config(lr=Linear(1e-3, 0), eps=1e-5, max_grad_norm=0.5), storage=Fresh.Config(horizon=256, batch=8),
        )),
        "memory_lstm": Experiment(name="memory_lstm", **cartpole(
            steps=200_000, algorithm=IMPALA.Config(reduction="mean", reward="none"), envs=Gym.Config(id="modrl/Memory-v0", count=16), actor=ActorCritic.Config(torso=MLP.Config(hidden=[32]), memory=LSTM.Config(size=32)),
            optimizer=Adam.Config(lr=3e-3, max_grad_norm=40), storage=Fresh.Config(horizon=16, batch=16),
        )),
        "custom_algorithm": Experiment(name="custom_algorithm", **cartpole(algorithm=calm.Config(calm_cost=Linear(1e-3, 0), reduction="mean", reward="none"))),
        "custom_torso": Experiment(name="custom_torso", **cartpole(
            actor=ActorCritic.Config(torso=fourier.Config(features=64), value="separate", init="orthogonal"),
        )),
        "custom_exploration": Experiment(name="custom_exploration", **cartpole(
            actor=exploring.Config(torso=MLP.Config(hidden=[128, 128]), value="separate", init="orthogonal"),
            scheme={"preset": "impala", "collection": ladder},
        )),
        "custom_env": Experiment(name="custom_env", **cartpole(
            steps=200_000, envs=Gym.Config(id=chase, kwargs={"speed": 0.3}, count=16), actor=ActorCritic.Config(torso="mlp", value="separate"),
            algorithm=IMPALA.Config(discount=0.95, reduction="mean", reward="none"), optimizer=Adam.Config(lr=Linear(2e-3, 0), max_grad_norm=40), storage=Fresh.Config(horizon=16, batch=16),
        )),
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_an_example_equals_its_python_twin_and_what_it_was_saved_as(path, tmp_path):
    experiment = Experiment.load(path)
    assert experiment == twins()[path.stem]
    experiment.save(tmp_path / "again.yaml")
    assert Experiment.load(tmp_path / "again.yaml") == experiment
    assert Experiment.from_dict(experiment.to_dict()) == experiment


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_an_example_runs_a_few_updates(path, tmp_path):
    experiment = Experiment.load(path, ["logging.tensorboard=false"])
    horizon, batch = experiment.storage.horizon, experiment.storage.batch
    small = experiment.replace(
        steps=3 * horizon * batch, evaluation=None, scheme="local" if experiment.scheme.preset == "impala" else experiment.scheme
    )
    small.run(tmp_path / "run")
    rows = table(tmp_path / "run")
    assert rows[-1]["env_steps"] == 3 * horizon * batch
    assert all(row["loss/total"] is not None for row in rows)


def test_each_collector_of_the_custom_exploration_explores_as_much_as_its_entry_says_and_says_so():
    """How often an action is taken is what `log_prob` says of it."""
    experiment = Experiment.load(EXAMPLES / "custom_exploration.yaml")
    parts = experiment.plan().parts
    for number, explore in enumerate((0.2, 0.1, 0.05, 0.0)):
        actor = parts.make_actor(parts.of_collector(number)[1])
        inference = Inference(torch.tensor([[2.0, 0.0]]).expand(40_000, 2), {}, ())
        step = actor.choose(inference, torch.Generator().manual_seed(number))
        right = (1 - explore) / (1 + math.exp(2)) + explore / 2
        assert step.action.float().mean() == pytest.approx(right, abs=0.01)
        assert step.behaviour["log_prob"][step.action == 1].exp().numpy() == pytest.approx(right)
        assert step.memory.last_action is step.action


def test_the_custom_components_train_on_ray(cluster, tmp_path):
    for name in ("custom_algorithm", "custom_torso", "custom_env", "custom_exploration"):
        experiment = Experiment.load(EXAMPLES / f"{name}.yaml", ["steps=2000", "scheme.preset=impala", "logging.tensorboard=false"])
        assert experiment.run(tmp_path / name).env_steps >= 2000


def test_the_composed_agent_runs_under_four_schemes(tmp_path):
    words = [sys.executable, str(EXAMPLES / "compose.py"), "3000"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if "return" in line] == ["local", "overlapped", "sebulba", "impala"]
