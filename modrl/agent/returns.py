"""Returns and advantages: pure functions of tensors [T, B, ...], without gradient.

How an episode ends is in two arguments, so that no formula has a `done` flag: `discounts` is gamma * (1 - terminated), and
`cuts` says where no trace crosses from t to t+1 (an episode ends at t by either kind of end, or filler follows). At a cut and
at the last step a return continues with `next_values[t]`, the value of the step's true successor: of the last observation of
a truncated episode, of the observation after the last step at the end.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import torch


class VTrace(NamedTuple):
    """What V-trace gives."""

    vs: torch.Tensor  # [T, B] targets of the values
    pg_advantages: torch.Tensor  # [T, B] what the policy gradient is weighted by


@torch.no_grad()
def vtrace(
    log_rhos: torch.Tensor,
    rewards: torch.Tensor,
    discounts: torch.Tensor,
    values: torch.Tensor,
    next_values: torch.Tensor,
    cuts: torch.Tensor,
    lambda_: float = 1.0,
    rho_clip: float | None = 1.0,
    c_clip: float | None = 1.0,
    pg_rho_clip: float | None = 1.0,
) -> VTrace:
    """Off-policy targets and advantages [T, B] (Espeholt et al., 2018, eq. 1 and section 4.2; lambda_ as in its remark 2).

        delta[t] = min(rho_clip, rho[t]) * (r[t] + g[t] * V'[t] - V[t])
        vs[t] - V[t] = delta[t] + g[t] * lambda_ * min(c_clip, rho[t]) * (vs[t+1] - V[t+1])
        adv[t] = min(pg_rho_clip, rho[t]) * (r[t] + g[t] * (lambda_ * vs[t+1] + (1 - lambda_) * V'[t]) - V[t])

    with rho = pi / mu, g the discounts and V' the next values. At a cut the second line has no second term and the third
    continues with V'[t]. With three equal clips adv = vs - V.

    Args:
        log_rhos: [T, B] log pi(a|x) of the learner - log mu(a|x) of the actor.
        rewards: [T, B]
        discounts: [T, B] gamma * (1 - terminated)
        values: [T, B] V(x[t])
        next_values: [T, B] V of the true successor.
        cuts: [T, B] bool: no trace crosses t -> t+1.
        lambda_: mixes one-step and longer targets.
        rho_clip: bounds the ratio in delta, and so what policy the values belong to; None: no clipping.
        c_clip: bounds the ratio in the trace; None: no clipping.
        pg_rho_clip: bounds the ratio in the advantages; None: no clipping.

    Raises:
        ValueError: the shapes differ, or cuts are not bool.
    """
    _check(cuts, log_rhos=log_rhos, rewards=rewards, discounts=discounts, values=values, next_values=next_values)
    ratios = log_rhos.exp()
    rho, c, pg_rho = (ratios if clip is None else ratios.clamp(max=clip) for clip in (rho_clip, c_clip, pg_rho_clip))
    deltas = rho * (rewards + discounts * next_values - values)
    vs = values + _scan(deltas, lambda_ * discounts * c * ~cuts)
    followed = torch.where(cuts[:-1], next_values[:-1], lambda_ * vs[1:] + (1 - lambda_) * next_values[:-1])
    next_vs = torch.cat([followed, next_values[-1:]])
    return VTrace(vs, pg_rho * (rewards + discounts * next_vs - values))


@torch.no_grad()
def gae(
    rewards: torch.Tensor, discounts: torch.Tensor, values: torch.Tensor, next_values: torch.Tensor, cuts: torch.Tensor, lambda_: float = 0.95
) -> torch.Tensor:
    """Advantages by generalised advantage estimation [T, B] (Schulman et al., 2016, eq. 16).

    A[t] = delta[t] + g[t] * lambda_ * A[t+1], with delta[t] = r[t] + g[t] * V'[t] - V[t]; no second term at a cut.
    Advantages plus values are the lambda-returns.
    """
    _check(cuts, rewards=rewards, discounts=discounts, values=values, next_values=next_values)
    return _scan(rewards + discounts * next_values - values, lambda_ * discounts * ~cuts)


@torch.no_grad()
def lambda_returns(
    rewards: torch.Tensor, discounts: torch.Tensor, next_values: torch.Tensor, cuts: torch.Tensor, lambda_: float = 1.0
) -> torch.Tensor:
    """Mixtures of all n-step returns [T, B] (Sutton & Barto, 2018, eq. 12.18 in its recursive form).

    G[t] = r[t] + g[t] * ((1 - lambda_) * V'[t] + lambda_ * G[t+1]); r[t] + g[t] * V'[t] at a cut and at the last step.
    """
    _check(cuts, rewards=rewards, discounts=discounts, next_values=next_values)
    share = lambda_ * (~cuts).to(rewards.dtype)
    share[-1] = 0
    return _scan(rewards + discounts * (1 - share) * next_values, discounts * share)


def discounted(rewards: torch.Tensor, discounts: torch.Tensor, next_values: torch.Tensor, cuts: torch.Tensor) -> torch.Tensor:
    """Sums of all rewards up to the cut or the last step, and the value of what follows it [T, B]."""
    return lambda_returns(rewards, discounts, next_values, cuts, lambda_=1.0)


@torch.no_grad()
def n_step(rewards: torch.Tensor, discounts: torch.Tensor, next_values: torch.Tensor, cuts: torch.Tensor, n: int) -> torch.Tensor:
    """Sums of n rewards and the value of what follows the n-th [T, B] (Sutton & Barto, 2018, eq. 7.1); fewer before a cut or the end.

    Raises:
        ValueError: n is below 1, the shapes differ, or cuts are not bool.
    """
    _check(cuts, rewards=rewards, discounts=discounts, next_values=next_values)
    if n < 1:
        raise ValueError(f"n: must be at least 1, got {n}")
    returns = rewards + discounts * next_values
    for _ in range(min(n, len(rewards)) - 1):
        followed = torch.where(cuts[:-1], next_values[:-1], returns[1:])
        returns = rewards + discounts * torch.cat([followed, next_values[-1:]])
    return returns


def check_shapes(**arrays: torch.Tensor) -> torch.Size:
    """The shape that all arrays have, so that nothing is broadcast unseen.

    Raises:
        ValueError: they differ; names the odd one out.
    """
    for name, array in arrays.items():
        if not isinstance(array, torch.Tensor):
            raise ValueError(f"{name}: expected a tensor, got {type(array).__name__}")
    shapes = [array.shape for array in arrays.values()]
    shape = shapes[0]
    if all(other == shape for other in shapes):
        return shape
    shape = Counter(shapes).most_common(1)[0][0]
    model = next(name for name, array in arrays.items() if array.shape == shape)
    for name, array in arrays.items():
        if array.shape != shape:
            raise ValueError(f"{name}: expected shape {list(shape)} as of {model}, got {list(array.shape)}")
    return shape


def _check(cuts: torch.Tensor, **arrays: torch.Tensor) -> None:
    shape = check_shapes(**arrays, cuts=cuts)
    if len(shape) < 2 or shape[0] == 0:
        raise ValueError(f"{', '.join(arrays)}, cuts: expected [T, B] with at least one step, got {list(shape)}")
    if cuts.dtype != torch.bool:
        raise ValueError(f"cuts: expected bool, got {str(cuts.dtype).removeprefix('torch.')}")


def _scan(deltas: torch.Tensor, decays: torch.Tensor) -> torch.Tensor:
    """x[t] = deltas[t] + decays[t] * x[t+1], from the last step back; nothing follows the last step."""
    *earlier, last = deltas.unbind()
    sums = [last]
    for delta, decay in zip(reversed(earlier), reversed(decays.to(deltas.dtype).unbind()[:-1]), strict=True):
        sums.append(torch.addcmul(delta, decay, sums[-1]))
    return torch.stack(sums[::-1])
