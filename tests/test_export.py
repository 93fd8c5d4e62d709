"""Policies as files of their own: they act as the policy that they were made of."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import modrl
from modrl import export as module
from modrl.agent.actors import ActorCritic
from modrl.config import BadInput
from modrl.export import export
from tests.runs import small

LSTM = {"name": "lstm", "size": 8}
GRU = {"name": "gru", "size": 8}
AGENTS = {
    "plain": ({"see": "vector", "do": "discrete"}, {}),
    "memory": ({"see": "vector", "do": "multi discrete"}, {"memory": LSTM, "last_action": True, "last_reward": True}),
    "two memories": ({"see": "number", "do": "multi binary"}, {"memory": GRU, "value": "separate"}),
    "nested": ({"see": "nested", "do": "dict"}, {"normalize_observations": True, "last_action": True}),
    "box": ({"see": "scalar", "do": "box"}, {"popart": 0.01}),
    "squashed": ({"see": "vector", "do": "box"}, {"distribution": "squashed", "memory": LSTM}),
    "pixels": ({"see": "pixels", "do": "tuple"}, {"torso": {"name": "auto", "image": {"name": "deep"}}}),
}


@pytest.fixture(scope="module", params=AGENTS)
def run_dir(request, tmp_path_factory):
    kwargs, settings = AGENTS[request.param]
    folder = tmp_path_factory.mktemp("export") / "run"
    actor = {"name": "actor_critic", "torso": "auto", **settings}
    envs = {"name": "gym", "id": "tests.scheme.tiny:Anything", "count": 8, "kwargs": kwargs}
    small(envs=envs, actor=actor, steps=80, optimizer={"name": "adam", "lr": 0.05}).run(folder)
    return folder


def reader(path):
    """What a program without modrl does with the file: a function of inputs by name, and its metadata."""
    if path.suffix == ".pt":
        extra = {"modrl": ""}
        loaded = torch.jit.load(str(path), _extra_files=extra)
        metadata = json.loads(extra["modrl"])
        return lambda given: [x.numpy() for x in loaded(*[torch.from_numpy(given[name]) for name in metadata["inputs"]])], metadata
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path))
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["modrl"])
    wanted = {entry.name for entry in session.get_inputs()}
    return lambda given: session.run(None, {name: value for name, value in given.items() if name in wanted}), metadata


def flat(prefix, tree):
    if isinstance(tree, dict):
        return {k: v for key in sorted(tree) for k, v in flat(f"{prefix}.{key}", tree[key]).items()}
    if isinstance(tree, tuple):
        return {k: v for key, part in enumerate(tree) for k, v in flat(f"{prefix}.{key}", part).items()}
    return {prefix: np.asarray(tree)}


@pytest.mark.parametrize("suffix", [".pt", ".onnx"])
def test_the_file_acts_as_the_policy_step_by_step(suffix, run_dir, tmp_path):
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    path = tmp_path / f"policy{suffix}"
    written = export(run_dir, path)
    act, metadata = reader(path)
    assert metadata == written
    policy = modrl.load(run_dir)
    space = policy.actor.observation_space
    space.seed(5)
    rng, seen = np.random.default_rng(5), set()
    memory = {name: np.zeros(of["shape"], of["dtype"]) for name, of in metadata["inputs"].items() if name.startswith("memory.")}
    for step in range(12):
        obs, reward, first = space.sample(), float(rng.normal()), step in (0, 7)
        if first:
            policy.reset()
        action = policy.act(obs, reward)
        given = {name: x[None].astype(metadata["inputs"][name]["dtype"]) for name, x in flat("obs", obs).items()}
        given |= {"first": np.array([first]), "reward": np.array([reward], np.float32), **memory}
        said = dict(zip(metadata["outputs"], act({name: given[name] for name in metadata["inputs"]}), strict=True))
        for name, expected in flat("action", action).items():
            np.testing.assert_allclose(said[name][0], expected, rtol=1e-4, atol=1e-4)
        seen.add(str(action))
        memory = {name: said[name] for name in memory}
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


def test_a_file_that_acts_otherwise_is_not_kept(run_dir, tmp_path, monkeypatch):
    monkeypatch.setitem(module._WRITERS, ".pt", lambda model, path: lambda tensors: [x + 1 for x in model(*tensors)])
    with pytest.raises(BadInput, match="the exported file acts otherwise than the policy: action"):
        export(run_dir, tmp_path / "policy.pt")
    assert not list(tmp_path.iterdir())


class Flips(ActorCritic, name="flips"):
    """Takes the other action."""

    def to_env(self, action):
        return 4 - super().to_env(action)


def test_an_actor_that_acts_in_a_way_of_its_own_is_found_out(tmp_path):
    envs = {"name": "gym", "id": "tests.scheme.tiny:Anything", "count": 8, "kwargs": {"see": "vector", "do": "discrete"}}
    small(envs=envs, actor={"name": "tests.test_export:Flips", "torso": "mlp"}, steps=40).run(tmp_path / "run")
    with pytest.raises(BadInput, match="acts otherwise than the policy: action"):
        export(tmp_path / "run", tmp_path / "policy.pt")


def test_another_kind_of_file_is_refused(run_dir, tmp_path):
    with pytest.raises(BadInput, match=r"--out: expected a file that ends in \.pt \(TorchScript\) or \.onnx \(ONNX\), got 'policy.txt'"):
        export(run_dir, tmp_path / "policy.txt")


def test_an_actor_of_ones_own_kind_is_refused(tmp_path):
    small(actor={"name": "tests.scheme.tiny:Bias"}, steps=40).run(tmp_path / "run")
    with pytest.raises(BadInput, match="Bias cannot be exported: only ActorCritic"):
        export(tmp_path / "run", tmp_path / "policy.pt")


def test_many_at_once(run_dir, tmp_path):
    metadata = export(run_dir, tmp_path / "policy.pt", batch=3)
    assert all(of["shape"][0] == 3 for of in metadata["inputs"].values())
