"""What every actor owes its learner: `act` and `forward` say the same, whatever torso, memory and spaces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from modrl.agent.actors import ActorCritic
from modrl.tree import leaves, to_numpy, tree_map
from tests.agent.actors.playing import pixels, play, vector, without_bootstrap

NESTED = spaces.Dict({"camera": spaces.Dict({"left": pixels(1, 36, 36)}), "goal": spaces.Tuple((vector(2), spaces.Discrete(3, start=1)))})
OBSERVATIONS = {
    "vector": vector(), "image": pixels(36, 36, 3), "discrete": spaces.Discrete(5, start=5), "binary": spaces.MultiBinary(3),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[1, -1]), "nested": NESTED,
}  # fmt: skip
ACTIONS = {
    "discrete": spaces.Discrete(3, start=5),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[1, 4]),
    "grid": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "binary": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "one": spaces.Box(-1, 1, (1,), np.float64),
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "nested": spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple((spaces.Box(-2, 3, (2, 1), np.float32), spaces.MultiBinary(2)))}),
}
EVERYTHING = {"last_action": True, "last_reward": True}
MEMORIES = [None, {"name": "lstm", "size": 8, "layers": 2}, {"name": "gru", "size": 8}]


def build(observation="vector", action="discrete", **settings) -> ActorCritic:
    torch.manual_seed(1)
    observation_space, action_space = OBSERVATIONS.get(observation, observation), ACTIONS.get(action, action)
    return ActorCritic.Config(**settings).build(observation_space=observation_space, action_space=action_space)


CASES = {
    **{f"sees {name}": {"observation": name, "memory": MEMORIES[1]} for name in OBSERVATIONS},
    **{f"does {name}": {"action": name, **EVERYTHING, "memory": MEMORIES[2]} for name in ACTIONS},
    **{f"shared {memory and memory['name']}": {"memory": memory, **EVERYTHING} for memory in MEMORIES},
    **{f"separate {memory and memory['name']}": {"value": "separate", "memory": memory, **EVERYTHING} for memory in MEMORIES},
    **{torso: {"observation": "image", "torso": torso, "last_reward": True} for torso in ("nature", "shallow", "deep", "mlp", "identity")},
    "fixup": {"observation": "image", "torso": {"name": "deep", "fixup": True}},
    "embedding": {"observation": "multi_discrete", "torso": "embedding", "last_action": True},
    "layer norm": {"torso": {"name": "mlp", "layer_norm": True, "activation": "silu"}, "init": "orthogonal"},
    "squashed": {"action": "nested", "distribution": "squashed", "last_action": True},
    "own std": {"action": "box", "log_std": {"state_dependent": True, "initial": -1}},
    "orthogonal lstm": {"memory": "lstm", "init": "orthogonal", "last_action": True},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_forward_repeats_what_act_said(case):
    actor = build(**CASES[case])
    for batch, final_value, after in play(actor):
        for learned in (batch, without_bootstrap(batch)):
            out = actor(learned)
            steps = len(batch.reward)
            padded = learned if len(learned.first) == steps else without_bootstrap(batch)
            log_prob = actor(padded).policy.log_prob(batch.action)
            assert log_prob.shape == batch.reward.shape
            assert out.value.shape == learned.first.shape
            torch.testing.assert_close(log_prob, batch.behaviour["log_prob"], atol=1e-5, rtol=0)
            torch.testing.assert_close(out.value[:steps], batch.behaviour["value"], atol=1e-5, rtol=0)
            if batch.final_obs is not None:
                torch.testing.assert_close(out.final_value, final_value, atol=1e-5, rtol=0)
            else:
                assert out.final_value is None
        continued = actor(without_bootstrap(batch)).memory
        for found, acted in zip(leaves(continued), leaves(after), strict=True):
            torch.testing.assert_close(found, acted, atol=1e-5, rtol=0)
            assert not found.requires_grad


def test_the_rollouts_of_the_contract_cover_resets_and_truncations():
    played = play(build())
    assert all(batch.first[1:].any() and not batch.first[1:].all() for batch, _, _ in played)
    assert sum(len(final) for _, final, _ in played) >= 3


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("does") or name == "squashed"])
def test_environments_admit_what_they_are_sent(case):
    actor = build(**CASES[case])
    for batch, _, _ in play(actor, rollouts=1):
        for t in range(len(batch.reward)):
            for b in range(batch.reward.shape[1]):
                sent = actor.to_env(_at(batch.action, t, slice(b, b + 1)))
                assert actor.action_space.contains(_one(sent)), sent


def _at(tree, *index):
    if isinstance(tree, dict):
        return {key: _at(part, *index) for key, part in tree.items()}
    return tuple(_at(part, *index) for part in tree) if isinstance(tree, tuple) else tree[index]


def _one(tree):
    if isinstance(tree, dict):
        return {key: _one(part) for key, part in tree.items()}
    return tuple(_one(part) for part in tree) if isinstance(tree, tuple) else tree[0, ...]


@pytest.mark.parametrize("memory", MEMORIES)
def test_nothing_before_an_episode_matters_to_it(memory):
    actor = build(memory=memory, **EVERYTHING)
    obs = torch.randn(3, 4)
    used = play(actor, rollouts=1)[0].after
    fresh = actor.initial_memory(3)
    first = torch.tensor([True, False, True])
    one, other = (actor.act(obs, first, memory, greedy=True).behaviour["value"] for memory in (used, fresh))
    assert torch.equal(one[first], other[first])
    assert not torch.equal(one[~first], other[~first])


@pytest.mark.parametrize("case", ["shared lstm", "separate gru", "does nested"])
def test_what_is_stored_carries_no_graph(case):
    actor = build(**CASES[case])
    batch, _, after = play(actor, rollouts=1)[0]
    assert not any(x.requires_grad for x in leaves((after, batch.behaviour, batch.action)))
    assert all(isinstance(x, np.ndarray) for x in leaves(to_numpy((after, batch.behaviour))))


@pytest.mark.parametrize("case", ["shared lstm", "separate None", "fixup", "does nested"])
def test_the_seed_decides_the_weights(case):
    one, same = build(**CASES[case]), build(**CASES[case])
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), same.state_dict().values(), strict=True))


def test_actions_depend_on_the_generator_alone():
    actor = build(action="nested")
    obs, first, memory = torch.randn(3, 4), torch.ones(3, dtype=torch.bool), actor.initial_memory(3)
    draws = []
    for seed in (1, 1, 2):
        torch.randn(5)  # stirs the global generator
        before = torch.get_rng_state()
        draws.append(leaves(actor.act(obs, first, memory, torch.Generator().manual_seed(seed)).action))
        assert torch.equal(before, torch.get_rng_state())
    assert all(map(torch.equal, draws[0], draws[1]))
    assert not all(map(torch.equal, draws[0], draws[2]))


@pytest.mark.parametrize("case", ["sees vector", "separate gru", "squashed", "deep"])
def test_half_precision_stays_inside(case):
    actor = build(**CASES[case])
    with torch.autocast("cpu", torch.bfloat16):
        batch, _, after = play(actor, rollouts=1)[0]
        out = actor(batch)
        greedy = actor.act(tree_map(lambda x: x[0], batch.obs), batch.first[0], actor.initial_memory(3), greedy=True)
    assert all(x.dtype != torch.bfloat16 for x in leaves(greedy.action))
    assert batch.behaviour["log_prob"].dtype == batch.behaviour["value"].dtype == out.value.dtype == torch.float32
    assert all(x.dtype != torch.bfloat16 for x in leaves((after, batch.action)))


@pytest.mark.parametrize("case", ["shared lstm", "separate gru", "nature", "fixup", "own std", "does nested"])
def test_every_parameter_learns(case):
    actor = build(**CASES[case])
    batch = play(actor, rollouts=1)[0].batch
    out = actor(without_bootstrap(batch))
    (out.value.square().sum() + out.policy.log_prob(batch.action).sum()).backward()
    dead = [name for name, parameter in actor.named_parameters() if parameter.grad is None or not parameter.grad.isfinite().all()]
    assert dead == []


def test_a_truncated_filler_world_repeats_act():
    """A next-step reset: the slot after a truncation shows the final observation again, and the slot after that is first."""
    actor = build(memory=MEMORIES[1], **EVERYTHING)
    batch = play(actor, rollouts=1, ends=0)[0].batch
    truncated, first = torch.zeros_like(batch.truncated), batch.first.clone()
    truncated[1, 0] = first[3, 0] = True
    out = actor(batch._replace(truncated=truncated, first=first, final_obs=batch.obs[2, :1]))
    torch.testing.assert_close(out.final_value, out.value[2, :1])
