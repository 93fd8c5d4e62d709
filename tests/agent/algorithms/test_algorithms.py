"""What every actor-critic algorithm promises, each with a linear actor in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from modrl.agent.algorithms import A2C, IMPALA, PPO, Algorithm
from modrl.agent.algorithms.transitions import log_prob, transitions
from modrl.agent.batch import Batch, concatenate, from_rollout
from modrl.agent.losses import mse, normalize
from modrl.agent.optimizers import Linear as LinearSchedule
from modrl.agent.returns import gae, vtrace
from tests.agent.toys import Linear, random_rollout

ALGORITHMS = [IMPALA, A2C, PPO]
STEPS, COLUMNS = 6, 8


def random_batch(steps=STEPS, columns=COLUMNS, seed=0, on_policy=None):
    """A batch; `on_policy`: its behaviour is this actor's."""
    batch = from_rollout(random_rollout(steps, columns, seed))
    if on_policy is None:
        return batch
    with torch.no_grad():
        return batch._replace(behaviour={"log_prob": log_prob(batch, on_policy(batch))})


def build(algorithm, actor, seed=0, **settings) -> Algorithm:
    return algorithm.Config(**settings).build(actor=actor, generator=torch.Generator().manual_seed(seed))


def gradients(algorithm, batch: Batch, weight=None):
    """The gradient of each loss on the weights that the batch begins with: summed, or divided by the total weight for a mean."""
    found = []
    for loss in algorithm.losses(batch):
        total = loss.total() / (1 if algorithm.config.reduction == "sum" else weight or loss.valid.sum())
        found.append(torch.autograd.grad(total, list(algorithm.actor.parameters()), allow_unused=True, materialize_grads=True))
    return found


def assert_equal(one, other, **tolerance):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


# --- transitions ----------------------------------------------------------------------------------------------------


def test_transitions_know_the_true_successor():
    actor, batch = Linear(), random_batch()
    out = actor(batch)
    steps = transitions(batch, out, 0.9, "clip")
    value, final = out.value.detach(), iter(out.final_value.tolist())
    for t in range(STEPS):
        for b in range(COLUMNS):
            expected = next(final) if batch.truncated[t, b] else value[t + 1, b].item()
            assert steps.next_values[t, b].item() == pytest.approx(expected)
            ended = batch.terminated[t, b] or batch.truncated[t, b]
            filler = not batch.valid[t, b] or (t + 1 < STEPS and not batch.valid[t + 1, b])
            assert steps.cuts[t, b].item() == bool(ended or filler)
            assert steps.discounts[t, b].item() == (0.0 if batch.terminated[t, b] else 0.9)
    assert torch.equal(steps.values, value[:-1])
    assert torch.equal(steps.rewards, batch.reward.clamp(-1, 1))
    assert not any(x.requires_grad for x in steps)


def test_an_actor_without_a_critic_is_refused():
    with pytest.raises(ValueError, match="needs an actor with a critic"):
        list(build(IMPALA, Linear(has_critic=False)).losses(random_batch()))


# --- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_losses_are_finite_and_as_many_as_promised(algorithm, recurrent):
    learner = build(algorithm, Linear(recurrent=recurrent))
    losses = list(learner.losses(random_batch()))
    assert len(losses) == learner.num_losses
    for loss in losses:
        assert torch.isfinite(loss.total())
        names, sums = loss.summed()
        assert {"entropy", "value", "rho", "kl"} <= set(names)
        assert torch.isfinite(sums).all()
        assert not any(value.requires_grad for value in loss.metrics.values())


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_column_and_one_step_are_enough(algorithm, steps):
    settings = {"minibatches": 1} if algorithm is PPO else {}
    assert all(torch.isfinite(loss.total()) for loss in build(algorithm, Linear(), **settings).losses(random_batch(steps, 1)))


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_fixed_batch_improves(algorithm, recurrent):
    """Action 0 is always good and the rest bad: the policy comes to take it, and the values come to know."""
    actor = Linear(recurrent=recurrent)
    batch = random_batch(on_policy=actor)
    batch = batch._replace(reward=torch.where(batch.action == 0, 1.0, -1.0).double())
    learner = build(algorithm, actor, reduction="mean", entropy_cost=0.0, discount=0.5)
    optimizer = torch.optim.SGD(actor.parameters(), lr=0.2)

    def standing():
        with torch.no_grad():
            out = actor(batch)
            steps = transitions(batch, out, 0.5)
        chance = out.policy.log_probs[:-1][batch.valid][:, 0].exp().mean().item()
        return chance, gae(*steps, lambda_=1.0)[batch.valid].square().mean().item()

    before = standing()
    for _ in range(10):
        for loss in learner.losses(batch):
            optimizer.zero_grad()
            (loss.total() / loss.valid.sum()).backward()
            optimizer.step()
    after = standing()
    assert after[0] > before[0] + 0.02
    assert after[1] < before[1]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("algorithm", [IMPALA, A2C])
def test_shards_add_up_to_the_whole(algorithm, reduction):
    learner, batch = build(algorithm, Linear(), reduction=reduction), random_batch()
    assert not batch.valid.all()
    weight = batch.valid.sum()
    (whole,) = gradients(learner, batch)
    parts = [gradients(learner, batch.columns(index), weight)[0] for index in torch.arange(COLUMNS).split([1, 5, 2])]
    assert_equal(whole, [sum(tensors) for tensors in zip(*parts, strict=True)], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("reduction", "factor"), [("sum", 2), ("mean", 1)])
@pytest.mark.parametrize("algorithm", [IMPALA, A2C])
def test_a_column_doubled_counts_twice_in_a_sum_and_once_in_a_mean(algorithm, reduction, factor):
    learner, batch = build(algorithm, Linear(), reduction=reduction), random_batch(columns=1)
    (once,), (twice,) = gradients(learner, batch), gradients(learner, concatenate([batch, batch]))
    assert_equal([factor * tensor for tensor in once], twice)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_filler_changes_nothing(algorithm, recurrent):
    settings = {"minibatches": 1} if algorithm is PPO and recurrent else {}
    learner, batch = build(algorithm, Linear(recurrent=recurrent), **settings), random_batch()
    other = random_batch(seed=1)
    filler = ~batch.valid
    filled = batch._replace(
        reward=torch.where(filler, 100 * other.reward, batch.reward),
        behaviour={"log_prob": torch.where(filler, other.behaviour["log_prob"], batch.behaviour["log_prob"])},
    )
    empty = other._replace(valid=torch.zeros_like(other.valid))
    expected = gradients(learner, batch)
    for same in (filled, concatenate([batch, empty])):
        again = build(algorithm, Linear(recurrent=recurrent), **settings)
        for one, two in zip(expected, gradients(again, same), strict=True):
            assert_equal(one, two)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_raw_reward_is_transformed_by_the_learner_alone(algorithm):
    batch = random_batch()
    settings = {"minibatches": 1, "epochs": 1} if algorithm is PPO else {}
    seen = batch._replace(memory=batch.memory._replace(last_reward=batch.memory.last_reward * 0), first=torch.ones_like(batch.first))
    clipped = gradients(build(algorithm, Linear(), reward="clip", **settings), seen)
    already = gradients(build(algorithm, Linear(), reward="none", **settings), seen._replace(reward=batch.reward.clamp(-1, 1)))
    assert_equal(clipped[0], already[0])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_users_extra_term_is_added(algorithm):
    class Mine(algorithm):
        class Config(algorithm.Config):
            recon_cost: float = 0.1

        def terms(self, batch, out):
            return super().terms(batch, out) | {"recon": self.config.recon_cost * mse(out.decoded, batch.obs)}

    batch = random_batch()
    settings = {"minibatches": 1, "epochs": 1} if algorithm is PPO else {}
    actor = Linear()
    (with_term,), (without,) = gradients(build(Mine, actor, **settings), batch), gradients(build(algorithm, actor, **settings), batch)
    assert_equal(with_term[:2], without[:2])
    assert not without[2].any()
    x = actor.inputs(batch)[:-1][batch.valid]
    expected = 0.2 / 3 * x.T @ (x @ actor.decoder - batch.obs[:-1][batch.valid])
    torch.testing.assert_close(with_term[2], expected.detach() / (1 if algorithm is IMPALA else batch.valid.sum()))


def test_a_term_that_was_averaged_is_refused():
    class Averaged(A2C):
        def terms(self, batch, out):
            return super().terms(batch, out) | {"recon": mse(out.decoded, batch.obs).mean()}

    with pytest.raises(ValueError, match="loss term 'recon' is "):
        next(iter(build(Averaged, Linear()).losses(random_batch()))).total()


def test_any_number_may_be_a_schedule():
    learner = build(IMPALA, Linear(), entropy_cost=LinearSchedule(0.01, 0), rho_clip=LinearSchedule(1, 2))
    learner.prepare(0.5)
    assert (learner.config.entropy_cost, learner.config.rho_clip) == (0.005, 1.5)
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        IMPALA.Config(entropy_cost=LinearSchedule(0.01, -1))


# --- each against its formula ---------------------------------------------------------------------------------------


def test_impalas_defaults_are_the_papers():
    config = IMPALA.Config()
    assert (config.discount, config.entropy_cost, config.value_cost, config.reward, config.reduction) == (0.99, 0.01, 0.5, "clip", "sum")
    assert (config.lambda_, config.rho_clip, config.c_clip, config.pg_rho_clip, config.normalize_advantages) == (1.0, 1.0, 1.0, 1.0, False)
    assert IMPALA.Config(rho_clip=None, c_clip=None, pg_rho_clip=None).rho_clip is None


def test_impalas_loss_is_the_papers():
    actor, batch = Linear(), random_batch()
    settings = {"lambda_": 0.9, "rho_clip": 1.5, "c_clip": 0.8, "pg_rho_clip": None}
    (loss,) = build(IMPALA, actor, entropy_cost=0.02, value_cost=0.25, **settings).losses(batch)
    out = actor(batch)
    log_pi = out.policy.log_probs[:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    corrected = vtrace(log_pi.detach() - batch.behaviour["log_prob"], *transitions(batch, out, 0.99, "clip"), **settings)
    expected = (
        -(log_pi * corrected.pg_advantages)
        + 0.25 * 0.5 * (corrected.vs - out.value[:-1]).square()
        - 0.02 * torch.distributions.Categorical(logits=out.policy.log_probs[:-1]).entropy()
    )
    torch.testing.assert_close(loss.total(), expected[batch.valid].sum())


def test_impala_on_policy_is_a2c():
    actor = Linear()
    batch = random_batch(on_policy=actor)
    settings = {"lambda_": 0.9, "reward": "none", "reduction": "mean"}
    assert_equal(gradients(build(IMPALA, actor, **settings), batch)[0], gradients(build(A2C, actor, **settings), batch)[0])


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("normalize_advantages", [False, True])
def test_ppos_first_gradient_is_a2cs(recurrent, normalize_advantages):
    actor = Linear(recurrent=recurrent)
    batch = random_batch(on_policy=actor)
    same = {"lambda_": 0.9, "normalize_advantages": normalize_advantages}
    first = gradients(build(PPO, actor, minibatches=1, **same), batch)[0]
    assert_equal(first, gradients(build(A2C, actor, **same), batch)[0])


# --- PPO ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recurrent", [False, True])
def test_an_epochs_minibatches_hold_every_valid_step_once(recurrent):
    learner, batch = build(PPO, Linear(recurrent=recurrent), epochs=3, minibatches=4), random_batch()
    losses = list(learner.losses(batch))
    assert len(losses) == 12
    sizes = [int(loss.valid.sum()) for loss in losses]
    for epoch in range(3):
        assert sum(sizes[4 * epoch : 4 * epoch + 4]) == batch.valid.sum()
    if not recurrent:
        assert max(sizes) - min(sizes) <= 1
    values = sorted(torch.cat([loss.metrics["value"][loss.valid] for loss in losses[:4]]).tolist())
    assert values == pytest.approx(sorted(learner.actor(batch).value[:-1][batch.valid].tolist()))  # last actions and rewards included
    orders = [torch.cat([loss.metrics["value"].flatten() for loss in losses[4 * e : 4 * e + 4]]).tolist() for e in range(3)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("recurrent", [False, True])
def test_minibatches_add_up_to_the_batch(recurrent):
    actor = Linear(recurrent=recurrent)
    batch = random_batch()
    options = {"epochs": 1, "normalize_advantages": False, "reduction": "sum", "value_clip": 0.1}
    parts = gradients(build(PPO, actor, minibatches=4, **options), batch)
    (whole,) = gradients(build(PPO, actor, minibatches=1, **options), batch)
    assert_equal(whole, [sum(tensors) for tensors in zip(*parts, strict=True)])


def test_shuffling_follows_the_generator():
    def order(seed):
        return [loss.metrics["value"].flatten().tolist() for loss in build(PPO, Linear(), seed).losses(random_batch())]

    assert order(0) == order(0)
    assert order(0) != order(1)


def test_ppos_advantages_stay_while_its_weights_move():
    actor = Linear()
    batch = random_batch(on_policy=actor)
    learner = build(PPO, actor, epochs=2, minibatches=1, normalize_advantages=False, value_cost=0.0, entropy_cost=0.0)
    expected = gae(*transitions(batch, actor(batch), 0.99), lambda_=0.95)[batch.valid]
    totals = []
    for loss in learner.losses(batch):
        totals.append(loss.total().item())
        with torch.no_grad():
            actor.value += 1.0  # only the critic
    assert totals == pytest.approx([-expected.sum().item()] * 2)


@pytest.mark.parametrize(
    ("recurrent", "minibatches", "message"),
    [
        (True, COLUMNS + 1, r"algorithm.minibatches: must be at most 8, the columns \(the actor is recurrent\) of .* got 9"),
        (False, STEPS * COLUMNS + 1, "algorithm.minibatches: must be at most 48, the steps of .* got 49"),
    ],
)
def test_more_minibatches_than_there_is_to_deal_out_are_refused(recurrent, minibatches, message):
    with pytest.raises(ValueError, match=message):
        list(build(PPO, Linear(recurrent=recurrent), minibatches=minibatches).losses(random_batch()))


@pytest.mark.parametrize("valid_steps", [0, 2])
def test_a_batch_of_mostly_filler_still_gives_every_loss(valid_steps):
    batch = random_batch()
    valid = torch.zeros_like(batch.valid)
    valid[0, :valid_steps] = True
    learner = build(PPO, Linear(), minibatches=4)
    losses = list(learner.losses(batch._replace(valid=valid)))
    assert len(losses) == learner.num_losses
    assert sum(int(loss.valid.sum()) for loss in losses) == 4 * valid_steps
    assert all(torch.isfinite(loss.total()) for loss in losses)


@pytest.mark.parametrize("recurrent", [False, True])
def test_beyond_the_target_kl_the_rest_is_yielded_empty(recurrent):
    actor = Linear(recurrent=recurrent)
    batch = random_batch(on_policy=actor)
    learner = build(PPO, actor, epochs=3, minibatches=2, target_kl=0.5)
    valid = []
    for i, loss in enumerate(learner.losses(batch)):
        valid.append(int(loss.valid.sum()))
        grads = torch.autograd.grad(loss.total(), list(actor.parameters()), allow_unused=True, materialize_grads=True)
        assert any(g.any() for g in grads) == (valid[-1] > 0)
        if i == 2:
            with torch.no_grad():
                actor.policy += 3 * torch.randn(actor.policy.shape, generator=torch.Generator().manual_seed(0))
    assert len(valid) == learner.num_losses
    assert all(valid[:3])
    assert not any(valid[3:])


def test_ppo_counts_clipped_steps():
    actor, batch = Linear(), random_batch()
    (loss,) = build(PPO, actor, epochs=1, minibatches=1, clip=0.3).losses(batch)
    ratio = (log_prob(batch, actor(batch)) - batch.behaviour["log_prob"]).exp()[batch.valid]
    expected = np.mean((ratio < 0.7).numpy() | (ratio > 1.3).numpy())
    assert dict(zip(*loss.summed(), strict=True))["clipped"].item() / int(loss.valid.sum()) == pytest.approx(expected)


def test_advantages_are_normalised_over_valid_steps_of_the_minibatch():
    actor = Linear()
    batch = random_batch(on_policy=actor)
    options = {"epochs": 1, "minibatches": 1, "value_cost": 0.0, "entropy_cost": 0.0}
    (loss,) = build(PPO, actor, **options).losses(batch)
    advantages = gae(*transitions(batch, actor(batch), 0.99), lambda_=0.95)
    expected = normalize(advantages, batch.valid)[batch.valid]
    assert sorted((-loss.terms["policy"][loss.valid]).tolist()) == pytest.approx(sorted(expected.tolist()))


@pytest.mark.parametrize(
    "bad", [{"clip": 0}, {"epochs": 0}, {"minibatches": 0}, {"dual_clip": 1.0}, {"target_kl": 0}, {"lambda_": 1.1}, {"value_clip": 0}]
)
def test_ppos_settings_have_bounds(bad):
    with pytest.raises(ValueError, match="must be"):
        PPO.Config(**bad)
