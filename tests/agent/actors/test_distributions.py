"""Distributions against the numbers of textbooks and against torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as td

from modrl.agent.actors.distributions import Bernoulli, Categorical, Gaussian, Joint, MultiCategorical, SquashedGaussian

SEEDED = torch.Generator().manual_seed(3)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=SEEDED)


def squashed(mean: torch.Tensor, log_std: torch.Tensor, half_range: float = 1.0) -> SquashedGaussian:
    return SquashedGaussian(mean, log_std, mean.shape[-1:], torch.full(mean.shape[-1:], half_range))


def test_parts_of_an_action_have_one_log_probability():
    uniform = MultiCategorical(torch.zeros(1, 1, 5), [2, 3], (2,))
    action = torch.tensor([[[1, 2]]])
    taken = MultiCategorical(torch.tensor([[[0.2, 0.8, 0.5, 0.25, 0.25]]]).log(), [2, 3], (2,)).log_prob(action)
    torch.testing.assert_close(uniform.log_prob(action), torch.tensor([[-1.791759]]))
    torch.testing.assert_close(taken, torch.tensor([[-1.609438]]))
    torch.testing.assert_close((taken - uniform.log_prob(action)).exp(), torch.tensor([[1.2]]))
    torch.testing.assert_close(uniform.entropy(), torch.tensor([[1.791759]]))


def test_a_box_has_one_log_probability():
    log_prob = Gaussian(torch.zeros(1, 1, 2), torch.zeros(2), (2,)).log_prob(torch.tensor([[[0.5, -1.0]]]))
    torch.testing.assert_close(log_prob, torch.tensor([[-2.462877]]))


PAIRS = {
    "categorical": (lambda x: Categorical(x), lambda x: td.Categorical(logits=x)),
    "bernoulli": (lambda x: Bernoulli(x, (4,)), lambda x: td.Independent(td.Bernoulli(logits=x), 1)),
    "gaussian": (
        lambda x: Gaussian(x[..., :2], x[..., 2:], (2,)),
        lambda x: td.Independent(td.Normal(x[..., :2], x[..., 2:].exp()), 1),
    ),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_torch_agrees(kind):
    ours, theirs = PAIRS[kind]
    one, other = randn(5, 3, 4), randn(5, 3, 4)
    action = ours(one).sample(SEEDED)
    torch.testing.assert_close(ours(one).log_prob(action), theirs(one).log_prob(action.float()))
    torch.testing.assert_close(ours(one).entropy(), theirs(one).entropy())
    torch.testing.assert_close(ours(one).kl(ours(other)), td.kl_divergence(theirs(one), theirs(other)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("make", [
    lambda n: Categorical(torch.tensor([0.0, 1.0, -1.0]).expand(n, 3)),
    lambda n: Bernoulli(torch.tensor([0.5]).expand(n, 1), (1,)),
    lambda n: MultiCategorical(torch.tensor([0.0, 1.0, 0.3, -0.4]).expand(n, 4), [2, 2], (2,)),
])  # fmt: skip
def test_samples_come_as_often_as_they_should(make):
    policy = make(100_000)
    values, counts = policy.sample(SEEDED).unique(dim=0, return_counts=True)
    share = counts / 100_000
    expected = make(len(values)).log_prob(values).exp()
    torch.testing.assert_close(share, expected, atol=0.006, rtol=0)


def test_gaussian_samples_have_its_moments():
    samples = Gaussian(torch.tensor([1.0]).expand(100_000, 1), torch.tensor([-1.0]), (1,)).sample(SEEDED)
    assert samples.mean().item() == pytest.approx(1.0, abs=0.006)
    assert samples.std().item() == pytest.approx(math.exp(-1), abs=0.004)


@pytest.mark.parametrize("half_range", [1.0, 2.5])
def test_the_density_of_a_squashed_gaussian_is_that_of_the_bounded_action(half_range):
    mean, log_std, u = randn(6, 2), randn(6, 2) * 0.3, randn(6, 2)
    parts = [td.TanhTransform(), td.AffineTransform(0, half_range)]
    theirs = td.Independent(td.TransformedDistribution(td.Normal(mean, log_std.exp()), parts), 1)
    torch.testing.assert_close(squashed(mean, log_std, half_range).log_prob(u), theirs.log_prob(u.tanh() * half_range), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("log_std", [-2.0, 0.0, 0.7])
def test_a_squashed_density_integrates_to_one_and_gives_the_entropy(log_std):
    bounded = torch.linspace(-1 + 1e-6, 1 - 1e-6, 400_001, dtype=torch.float64)
    u = bounded.atanh().float().unsqueeze(-1)
    log_prob = squashed(torch.full_like(u, 0.4), torch.tensor([log_std])).log_prob(u).double()
    assert torch.trapezoid(log_prob.exp(), bounded).item() == pytest.approx(1.0, abs=2e-3)
    entropy = -torch.trapezoid(log_prob.exp() * log_prob, bounded).item()
    assert squashed(torch.tensor([[0.4]]), torch.tensor([log_std])).entropy().item() == pytest.approx(entropy, abs=2e-2)


def test_far_actions_and_extreme_parameters_stay_finite():
    far = squashed(torch.tensor([[50.0]]), torch.tensor([-20.0]))
    assert far.log_prob(torch.tensor([[50.0]])).isfinite().all()
    assert far.entropy().isfinite().all()
    logits = torch.tensor([[1e4, -1e4, -math.inf]], requires_grad=True)
    certain = Categorical(logits)
    assert certain.entropy().item() == 0
    assert certain.sample(SEEDED).item() == certain.mode().item() == 0
    certain.entropy().sum().backward()
    assert logits.grad is not None
    assert logits.grad[:, :2].isfinite().all()


def test_parts_of_a_dict_are_matched_by_key():
    logits, mean = randn(2, 3), randn(2, 1)
    policy = Joint({"a": Categorical(logits), "b": Gaussian(mean, torch.zeros(1), (1,))})
    action = policy.sample(SEEDED)
    reordered = {"b": action["b"], "a": action["a"]}
    expected = Categorical(logits).log_prob(action["a"]) + Gaussian(mean, torch.zeros(1), (1,)).log_prob(action["b"])
    torch.testing.assert_close(policy.log_prob(reordered), expected)
    torch.testing.assert_close(policy.kl(policy), torch.zeros(2))


@pytest.mark.parametrize(
    "policy", [Categorical(torch.zeros(3, 2, 4)), Bernoulli(torch.zeros(3, 2, 4), (4,)), Gaussian(torch.zeros(3, 2, 4), torch.zeros(4), (4,))]
)
def test_actions_of_another_shape_are_refused(policy):
    action = policy.mode()
    for wrong in (action[:1], action[:, :1], action.unsqueeze(0)):
        with pytest.raises(ValueError, match="one for each step"):
            policy.log_prob(wrong)
