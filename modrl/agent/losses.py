"""Losses, one number per step: pure functions of tensors [T, B], each to be minimised.

None of them averages over steps or columns: filler is masked and shards of a batch are added by step (`Loss`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch

from modrl.agent.returns import check_shapes

RewardForm: TypeAlias = Literal["none", "clip", "sign", "soft_asymmetric", "soft_asymmetric_paper", "normalized"]


def policy_gradient(log_prob: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """-log pi(a|x) * A [T, B]: its gradient is the policy gradient's (Williams, 1992)."""
    check_shapes(log_prob=log_prob, advantages=advantages)
    return -log_prob * advantages.detach()


def clipped_surrogate(
    log_prob: torch.Tensor, old_log_prob: torch.Tensor, advantages: torch.Tensor, clip: float, dual_clip: float | None = None
) -> torch.Tensor:
    """-min(rho * A, clip(rho, 1 - clip, 1 + clip) * A) [T, B], with rho = pi / pi_old (Schulman et al., 2017, eq. 7).

    `dual_clip` bounds the objective from below where A < 0: max(..., dual_clip * A) (Ye et al., 2020, eq. 5).
    """
    check_shapes(log_prob=log_prob, old_log_prob=old_log_prob, advantages=advantages)
    advantages = advantages.detach()
    ratio = (log_prob - old_log_prob.detach()).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    if dual_clip is not None:
        objective = torch.where(advantages < 0, torch.maximum(objective, dual_clip * advantages), objective)
    return -objective


def value_error(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Half the squared error of the values, 0.5 * (target - V)^2 [T, B]."""
    check_shapes(values=values, targets=targets)
    return 0.5 * (targets.detach() - values).square()


def clipped_value_error(values: torch.Tensor, old_values: torch.Tensor, targets: torch.Tensor, clip: float | torch.Tensor) -> torch.Tensor:
    """The larger of two half squared errors: of V, and of V moved at most `clip` away from what it was [T, B]."""
    check_shapes(values=values, old_values=old_values, targets=targets)
    old_values = old_values.detach()
    near = old_values + (values - old_values).clamp(-clip, clip)  # type: ignore[arg-type]
    return torch.maximum(value_error(values, targets), value_error(near, targets))


def mse(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The squared error of each step, averaged over all dimensions behind the first two [S, B]."""
    check_shapes(prediction=prediction, target=target)
    error = (prediction - target.detach().to(prediction.dtype)).square()
    return error.flatten(2).mean(2) if error.ndim > 2 else error


def kl_estimate(log_ratio: torch.Tensor) -> torch.Tensor:
    """An estimate of KL(old || new) per step, rho - 1 - log rho, from log_ratio = log pi_new - log pi_old; never negative."""
    return log_ratio.exp() - 1 - log_ratio


def normalize(x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """`x` with mean 0 and standard deviation 1 over the valid steps [T, B]; where none is valid, zeros."""
    check_shapes(x=x, valid=valid)
    count = valid.sum().clamp(min=1)
    centred = torch.where(valid, x - torch.where(valid, x, 0).sum() / count, 0)
    return centred / ((centred.square().sum() / count).sqrt() + 1e-8)


def transform_reward(reward: torch.Tensor, form: RewardForm) -> torch.Tensor:
    """What the learner makes of the raw reward [T, B]; `normalized` is for the one that has the statistics."""
    return _REWARDS[form](reward)


def _soft_asymmetric(reward: torch.Tensor) -> torch.Tensor:
    """5 * tanh(r / 5), times 0.3 where negative: what the code published with IMPALA does."""
    squeezed = 5 * torch.tanh(reward / 5)
    return torch.where(reward < 0, 0.3 * squeezed, squeezed)


def _soft_asymmetric_paper(reward: torch.Tensor) -> torch.Tensor:
    """0.3 * min(tanh r, 0) + 5 * max(tanh r, 0): what its paper says (Espeholt et al., 2018, fig. D.1)."""
    squeezed = torch.tanh(reward)
    return 0.3 * squeezed.clamp(max=0) + 5 * squeezed.clamp(min=0)


_REWARDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda reward: reward,
    "clip": lambda reward: reward.clamp(-1, 1),
    "sign": torch.sign,
    "soft_asymmetric": _soft_asymmetric,
    "soft_asymmetric_paper": _soft_asymmetric_paper,
}
