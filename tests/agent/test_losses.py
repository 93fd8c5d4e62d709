"""Losses and reward forms against hand-worked numbers."""

from __future__ import annotations

import math

import pytest
import torch

from modrl.agent.losses import (
    clipped_surrogate,
    clipped_value_error,
    kl_estimate,
    mse,
    normalize,
    policy_gradient,
    transform_reward,
    value_error,
)


def test_values_are_compared_one_by_one():
    assert mse(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]])).mean().item() == 0.0  # 0.5 if broadcast
    assert value_error(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])).tolist() == [0.0, 0.0]
    assert value_error(torch.tensor([1.0]), torch.tensor([3.0])).item() == 2.0


def test_the_policy_gradient_pairs_each_action_with_its_advantage():
    losses = policy_gradient(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 3.0]))
    assert losses.sum().item() == 7.0  # 12 if broadcast
    assert losses.mean().item() == 3.5  # 3 if broadcast


@pytest.mark.parametrize(
    ("function", "extra"), [(policy_gradient, ()), (value_error, ()), (mse, ()), (clipped_surrogate, (0.2,)), (clipped_value_error, (0.2,))]
)
def test_nothing_is_broadcast(function, extra):
    number = 3 if function in (clipped_surrogate, clipped_value_error) else 2
    arrays = [torch.zeros(4, 3)] * (number - 1) + [torch.zeros(4, 1)]
    with pytest.raises(ValueError, match=r"expected shape \[4, 3\] as of|expected shape \[4, 1\] as of"):
        function(*arrays, *extra)


def test_no_gradient_flows_into_targets_and_advantages():
    target = torch.ones(2, 2, requires_grad=True)
    prediction = torch.zeros(2, 2, requires_grad=True)
    total = policy_gradient(prediction, target) + value_error(prediction, target) + mse(prediction, target)
    (total + clipped_surrogate(prediction, target, target, 0.2) + clipped_value_error(prediction, target, target, 0.2)).sum().backward()
    assert target.grad is None
    assert prediction.grad is not None


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # further up is not rewarded
        (0.5, 2.0, -1.0, -1.0),
        (0.5, -2.0, 1.6, 0.0),  # further down is not rewarded
        (1.5, -2.0, 3.0, 3.0),
        (9.0, -2.0, 18.0, 18.0),
    ],
)
def test_the_surrogate_is_clipped_on_the_side_that_gains(ratio, advantage, loss, slope):
    log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
    out = clipped_surrogate(log_prob, torch.zeros(1), torch.tensor([advantage]), 0.2)
    out.sum().backward()
    assert out.item() == pytest.approx(loss)
    assert log_prob.grad.item() == pytest.approx(slope)


def test_dual_clip_bounds_the_loss_of_bad_actions_only():
    log_prob = torch.tensor([9.0, 9.0]).log()
    out = clipped_surrogate(log_prob, torch.zeros(2), torch.tensor([-2.0, 2.0]), 0.2, dual_clip=3.0)
    assert out.tolist() == pytest.approx([6.0, -2.4])


def test_the_clipped_value_error_is_the_larger_of_two():
    out = clipped_value_error(torch.tensor([2.0, 2.0, 0.1]), torch.zeros(3), torch.tensor([2.0, -1.0, 1.0]), 0.5)
    assert out.tolist() == pytest.approx([0.5 * 1.5**2, 0.5 * 9, 0.5 * 0.81])


def test_mse_averages_over_what_lies_behind_a_step():
    prediction, target = torch.zeros(2, 3, 4, 5), torch.full((2, 3, 4, 5), 3, dtype=torch.uint8)
    assert mse(prediction, target).shape == (2, 3)
    assert mse(prediction, target).tolist() == [[9.0] * 3] * 2


def test_kl_is_never_negative():
    log_ratio = torch.linspace(-2, 2, 9)
    assert (kl_estimate(log_ratio) >= 0).all()
    assert kl_estimate(torch.zeros(1)).item() == 0
    old, new = torch.tensor([0.2, 0.8]), torch.tensor([0.5, 0.5])
    exact = (old * (old / new).log()).sum()
    assert (old * kl_estimate((new / old).log())).sum().item() == pytest.approx(exact.item())


def test_normalize_sees_valid_steps_only():
    x = torch.tensor([[1.0, 3.0], [1000.0, 5.0]], dtype=torch.float64)
    valid = torch.tensor([[True, True], [False, True]])
    out = normalize(x, valid)
    assert out[valid].mean().item() == pytest.approx(0, abs=1e-6)
    assert out[valid].std(correction=0).item() == pytest.approx(1)
    assert torch.equal(normalize(x, torch.zeros_like(valid)), torch.zeros(2, 2, dtype=torch.float64))
    assert torch.isfinite(normalize(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool))).all()


@pytest.mark.parametrize(
    ("form", "seen"),
    [
        ("none", [-5.0, 0.3, 200.0, 0.0]),
        ("clip", [-1.0, 0.3, 1.0, 0.0]),
        ("sign", [-1.0, 1.0, 1.0, 0.0]),
        ("soft_asymmetric", [-0.3 * 5 * math.tanh(1), 5 * math.tanh(0.06), 5.0, 0.0]),
        ("soft_asymmetric_paper", [0.3 * math.tanh(-5), 5 * math.tanh(0.3), 5.0, 0.0]),
    ],
)
def test_reward_forms(form, seen):
    assert transform_reward(torch.tensor([-5.0, 0.3, 200.0, 0.0]), form).tolist() == pytest.approx(seen, abs=1e-6)


def test_soft_asymmetric_is_the_published_codes_form():
    out = transform_reward(torch.tensor([-2.0, 2.0], dtype=torch.float64), "soft_asymmetric")
    assert out.tolist() == pytest.approx([-0.569923, 1.899745], abs=1e-6)
