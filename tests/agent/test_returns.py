"""Returns against slow double loops written from the papers, hand-worked numbers, and each other."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modrl.agent.returns import check_shapes, discounted, gae, lambda_returns, n_step, vtrace

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def column(values):
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 1)


def flags(values):
    return torch.tensor(values, dtype=torch.bool).reshape(-1, 1)


def case(r, v, bootstrap, gamma, terminated=None, truncated=None, final=None, valid=None):
    """One column's rewards, discounts, values, next values and cuts, in the order of the functions' parameters."""
    steps = len(r)
    terminated, truncated, valid = terminated or [0] * steps, truncated or [0] * steps, valid or [1] * steps
    following = [*v[1:], bootstrap]
    next_values = [final if truncated[t] and not terminated[t] else following[t] for t in range(steps)]
    cuts = [bool(terminated[t] or truncated[t] or not valid[t] or (t + 1 < steps and not valid[t + 1])) for t in range(steps)]
    return column(r), column([gamma * (1 - end) for end in terminated]), column(v), column(next_values), flags(cuts)


def ratios(values):
    return column([math.log(ratio) for ratio in values])


def assert_column(tensor, expected, atol=1e-6):
    got = tensor.squeeze(1)
    for t, number in enumerate(expected):
        if number is not None:
            assert got[t].item() == pytest.approx(number, abs=atol), f"slot {t} of {got.tolist()}"


# --- hand-worked ----------------------------------------------------------------------------------------------------


def test_filler_is_no_transition():
    steps = case([1, 1, 0, 1], [10, 10, 7, 20], 20, 0.9, terminated=[0, 1, 0, 0], valid=[1, 1, 0, 1])
    out = vtrace(ratios([1, 1, 1, 1]), *steps)
    assert_column(out.vs, [1.9, 1.0, None, 19.0])
    assert_column(out.pg_advantages, [-8.1, -9.0, None, -1.0])
    errors = 0.5 * (out.vs - steps[2]).square().squeeze(1)[[0, 1, 3]]
    assert errors.sum().item() == pytest.approx(73.805)
    assert errors.mean().item() == pytest.approx(24.601667)


@pytest.mark.parametrize(
    ("terminated", "truncated", "vs", "advantages"),
    [
        ([0, 0, 0, 0], [0, 1, 0, 0], [10, 10, 18.1, 19], [0, 0, -1.9, -1]),
        ([0, 1, 0, 0], [0, 0, 0, 0], [1.9, 1, 18.1, 19], [-8.1, -9, -1.9, -1]),
        ([0, 1, 0, 0], [0, 1, 0, 0], [1.9, 1, 18.1, 19], [-8.1, -9, -1.9, -1]),
    ],
    ids=["truncated", "terminated", "both"],
)
def test_only_a_true_end_forgoes_its_value(terminated, truncated, vs, advantages):
    out = vtrace(ratios([1] * 4), *case([1] * 4, [10, 10, 20, 20], 20, 0.9, terminated, truncated, final=10))
    assert_column(out.vs, vs)
    assert_column(out.pg_advantages, advantages)


def test_no_value_leaks_across_a_truncation_off_policy():
    steps = case([1] * 4, [10, 10, 20, 20], 20, 0.9, truncated=[0, 1, 0, 0], final=12)
    log_rhos = ratios([1, 0.5, 2, 1])
    out = vtrace(log_rhos, *steps)
    assert_column(out.vs, [10.81, 10.9, 18.1, 19])
    assert_column(out.pg_advantages, [0.81, 0.9, -1.9, -1])
    for piece in (slice(0, 2), slice(2, 4)):
        alone = vtrace(log_rhos[piece], *(x[piece] for x in steps))
        torch.testing.assert_close(out.vs[piece], alone.vs)
        torch.testing.assert_close(out.pg_advantages[piece], alone.pg_advantages)


def test_a_truncation_at_the_last_step_bootstraps_from_the_final_observation():
    out = vtrace(ratios([1, 1]), *case([1, 1], [4, 6], 999, 0.5, truncated=[0, 1], final=8))
    assert_column(out.vs, [3.5, 5.0])
    assert_column(out.pg_advantages, [-0.5, -1])


@pytest.mark.parametrize(
    ("rho", "c", "pg", "vs", "advantages"),
    [
        (1, 1, 1, [4.294, 3.66, 4.8], [3.794, 2.66, 3.3]),
        (None, 1, 1, [5.694, 3.66, 4.8], [3.794, 2.66, 3.3]),
        (1, 1, None, [4.294, 3.66, 4.8], [7.588, 2.66, 3.3]),
        (None, None, None, [8.088, 3.66, 4.8], [7.588, 2.66, 3.3]),
    ],
)
def test_three_thresholds_are_three(rho, c, pg, vs, advantages):
    out = vtrace(ratios([2, 0.5, 1]), *case([1, 2, 3], [0.5, 1, 1.5], 2, 0.9), rho_clip=rho, c_clip=c, pg_rho_clip=pg)
    assert_column(out.vs, vs)
    assert_column(out.pg_advantages, advantages)


def test_the_bootstrap_counts_once():
    out = vtrace(ratios([1, 1, 1]), *case([1, 2, 3], [0.5, 1, 1.5], 2, 0.9))
    assert_column(out.vs, [6.688, 6.32, 4.8])
    assert_column(out.pg_advantages, [6.188, 5.32, 3.3])


def test_the_ratio_is_learner_over_actor():
    upside_down = vtrace(-ratios([2, 0.5, 1]), *case([1, 2, 3], [0.5, 1, 1.5], 2, 0.9))
    assert_column(upside_down.vs, [3.594, 6.32, 4.8])  # what the wrong order would give


def test_every_step_is_trained():
    steps = case([0, 0, 1], [0, 0, 0], 5, 0.99, terminated=[0, 0, 1])
    assert_column(vtrace(ratios([1, 1, 1]), *steps).vs, [0.9801, 0.99, 1])
    steps = case([0, 1], [0.9, 0.95], 5, 0.99, terminated=[0, 1])
    out = vtrace(ratios([1, 1]), *steps)
    assert_column(out.vs, [0.99, 1])
    assert_column(out.pg_advantages, [0.09, 0.05])
    rewards, discounts, _, next_values, cuts = steps
    assert_column(n_step(rewards, discounts, next_values, cuts, 1), [0.9405, 1])


# --- against slow double loops --------------------------------------------------------------------------------------


def slow_vtrace(log_rhos, rewards, discounts, values, next_values, cuts, lambda_, rho_clip, c_clip, pg_rho_clip):
    """Espeholt et al. (2018), eq. 1: vs = V + sum over k of gamma^k (prod of c) delta, one product and one sum at a time."""

    def clipped(ratio, bound):
        return ratio if bound is None else min(bound, ratio)

    steps, columns = rewards.shape
    vs, advantages = torch.empty_like(values), torch.empty_like(values)
    for b in range(columns):
        for s in range(steps):
            total = values[s, b].item()
            weight = 1.0
            for t in range(s, steps):
                rho = math.exp(log_rhos[t, b])
                delta = clipped(rho, rho_clip) * (rewards[t, b] + discounts[t, b] * next_values[t, b] - values[t, b]).item()
                total += weight * delta
                if cuts[t, b]:
                    break
                weight *= discounts[t, b].item() * lambda_ * clipped(rho, c_clip)
            vs[s, b] = total
    for b in range(columns):
        for t in range(steps):
            following = next_values[t, b]
            if t + 1 < steps and not cuts[t, b]:
                following = lambda_ * vs[t + 1, b] + (1 - lambda_) * values[t + 1, b]
            rho = clipped(math.exp(log_rhos[t, b]), pg_rho_clip)
            advantages[t, b] = rho * (rewards[t, b] + discounts[t, b] * following - values[t, b])
    return vs, advantages


def slow_n_step(rewards, discounts, next_values, cuts, n):
    """r[t] + g[t] r[t+1] + ... of at most n rewards, then the value of what follows the last of them."""
    steps, columns = rewards.shape
    returns = torch.empty_like(rewards)
    for b in range(columns):
        for s in range(steps):
            total, weight = 0.0, 1.0
            for t in range(s, min(s + n, steps)):
                total += weight * rewards[t, b].item()
                weight *= discounts[t, b].item()
                if cuts[t, b] or t == min(s + n, steps) - 1:
                    total += weight * next_values[t, b].item()
                    break
            returns[s, b] = total
    return returns


def slow_lambda_return(rewards, discounts, next_values, cuts, lambda_):
    """The mixture itself: (1 - lambda) lambda^(n-1) of each n-step return, the rest on the longest (Sutton & Barto, eq. 12.3)."""
    steps, columns = rewards.shape
    by_n = [slow_n_step(rewards, discounts, next_values, cuts, n) for n in range(1, steps + 1)]
    returns = torch.empty_like(rewards)
    for b in range(columns):
        for t in range(steps):
            longest = next(n for n in range(1, steps + 1) if t + n == steps or cuts[t + n - 1, b])
            mixed = sum((1 - lambda_) * lambda_ ** (n - 1) * by_n[n - 1][t, b] for n in range(1, longest))
            returns[t, b] = mixed + lambda_ ** (longest - 1) * by_n[longest - 1][t, b]
    return returns


def slow_gae(rewards, discounts, values, next_values, cuts, lambda_):
    """Schulman et al. (2016), eq. 16: the sum over l of (gamma lambda)^l delta[t+l]."""
    steps, columns = rewards.shape
    advantages = torch.zeros_like(rewards)
    for b in range(columns):
        for s in range(steps):
            weight = 1.0
            for t in range(s, steps):
                advantages[s, b] += weight * (rewards[t, b] + discounts[t, b] * next_values[t, b] - values[t, b])
                if cuts[t, b]:
                    break
                weight *= discounts[t, b].item() * lambda_
    return advantages


def random_case(seed, steps, columns):
    """Ratios on both sides of the clips; terminations, truncations, both at once, and filler."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def chance(p):
        return torch.rand(steps, columns, generator=generator) < p

    terminated, truncated, valid = chance(0.15), chance(0.15), ~chance(0.15)
    value = normal(steps + 1, columns)
    next_values = torch.where(truncated, normal(steps, columns), value[1:])
    cuts = terminated | truncated | ~valid
    cuts[:-1] |= ~valid[1:]
    discounts = 0.9 * (~terminated).double()
    return normal(steps, columns), normal(steps, columns), discounts, value[:-1], next_values, cuts


any_case = st.builds(random_case, st.integers(0, 2**31), st.integers(1, 8), st.integers(1, 3))
any_clip = st.sampled_from([None, 0.5, 1.0, 1.7])
any_lambda = st.sampled_from([0.0, 0.3, 0.95, 1.0])


@given(any_case, any_lambda, any_clip, any_clip, any_clip)
@settings(max_examples=150, deadline=None)
def test_vtrace_is_the_papers_sum(steps, lambda_, rho, c, pg):
    out = vtrace(*steps, lambda_, rho, c, pg)
    vs, advantages = slow_vtrace(*steps, lambda_, rho, c, pg)
    torch.testing.assert_close(out.vs, vs, **CLOSE)
    torch.testing.assert_close(out.pg_advantages, advantages, **CLOSE)


@given(any_case, any_lambda)
@settings(max_examples=100, deadline=None)
def test_gae_is_the_papers_sum(steps, lambda_):
    torch.testing.assert_close(gae(*steps[1:], lambda_), slow_gae(*steps[1:], lambda_), **CLOSE)


@given(any_case, st.integers(1, 10))
@settings(max_examples=100, deadline=None)
def test_n_step_is_the_books_sum(steps, n):
    _, rewards, discounts, _, next_values, cuts = steps
    torch.testing.assert_close(n_step(rewards, discounts, next_values, cuts, n), slow_n_step(rewards, discounts, next_values, cuts, n), **CLOSE)


@given(any_case, any_lambda)
@settings(max_examples=60, deadline=None)
def test_lambda_returns_are_the_books_mixture(steps, lambda_):
    _, rewards, discounts, _, next_values, cuts = steps
    slow = slow_lambda_return(rewards, discounts, next_values, cuts, lambda_)
    torch.testing.assert_close(lambda_returns(rewards, discounts, next_values, cuts, lambda_), slow, **CLOSE)


# --- identities -----------------------------------------------------------------------------------------------------


@given(any_case, any_lambda)
@settings(max_examples=50, deadline=None)
def test_vtrace_on_policy_is_the_lambda_return(steps, lambda_):
    log_rhos, rewards, discounts, values, next_values, cuts = steps
    out = vtrace(torch.zeros_like(log_rhos), rewards, discounts, values, next_values, cuts, lambda_)
    torch.testing.assert_close(out.vs, lambda_returns(rewards, discounts, next_values, cuts, lambda_), **CLOSE)
    torch.testing.assert_close(out.pg_advantages, out.vs - values, **CLOSE)


@given(any_case, any_lambda, any_clip)
@settings(max_examples=50, deadline=None)
def test_equal_clips_make_the_advantage_the_error(steps, lambda_, clip):
    out = vtrace(*steps, lambda_, clip, clip, clip)
    torch.testing.assert_close(out.pg_advantages, out.vs - steps[3], **CLOSE)


@given(any_case, any_lambda)
@settings(max_examples=50, deadline=None)
def test_pieces_between_cuts_give_the_same_as_the_whole(steps, lambda_):
    whole = vtrace(*steps, lambda_, 1.0, 0.7, 1.5)
    for b in range(steps[0].shape[1]):
        start = 0
        for t in range(len(steps[0])):
            if steps[-1][t, b] or t == len(steps[0]) - 1:
                piece = slice(start, t + 1), slice(b, b + 1)
                alone = vtrace(*(x[piece] for x in steps), lambda_, 1.0, 0.7, 1.5)
                torch.testing.assert_close(whole.vs[piece], alone.vs, **CLOSE)
                torch.testing.assert_close(whole.pg_advantages[piece], alone.pg_advantages, **CLOSE)
                start = t + 1


@given(any_case)
@settings(max_examples=50, deadline=None)
def test_gae_with_lambda_1_is_monte_carlo(steps):
    _, rewards, discounts, values, next_values, cuts = steps
    monte_carlo = slow_n_step(rewards, discounts, next_values, cuts, len(rewards))
    torch.testing.assert_close(gae(rewards, discounts, values, next_values, cuts, 1.0) + values, monte_carlo, **CLOSE)
    torch.testing.assert_close(discounted(rewards, discounts, next_values, cuts), monte_carlo, **CLOSE)


@given(any_case)
@settings(max_examples=25, deadline=None)
def test_lambda_0_is_one_step(steps):
    _, rewards, discounts, _, next_values, cuts = steps
    one_step = n_step(rewards, discounts, next_values, cuts, 1)
    torch.testing.assert_close(lambda_returns(rewards, discounts, next_values, cuts, 0.0), one_step, **CLOSE)


# --- shapes and gradients -------------------------------------------------------------------------------------------


def test_higher_ranks_are_columns_too():
    steps = random_case(0, 5, 6)
    shaped = vtrace(*(x.reshape(5, 2, 3, 1) for x in steps), 0.9, 1.0, 0.8, None)
    flat = vtrace(*steps, 0.9, 1.0, 0.8, None)
    torch.testing.assert_close(shaped.vs.reshape(5, 6), flat.vs)
    torch.testing.assert_close(shaped.pg_advantages.reshape(5, 6), flat.pg_advantages)
    torch.testing.assert_close(gae(*(x.reshape(5, 2, 3) for x in steps[1:])).reshape(5, 6), gae(*steps[1:]))


NAMES = ["log_rhos", "rewards", "discounts", "values", "next_values", "cuts"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [lambda x: x.unsqueeze(-1), lambda x: x[:1], lambda x: x[:, :1], lambda x: x[0]])
def test_a_wrong_shape_is_named(name, change):
    steps = dict(zip(NAMES, random_case(0, 5, 3), strict=True))
    steps[name] = change(steps[name])
    with pytest.raises(ValueError, match=rf"^{name}: expected shape \[5, 3\]"):
        vtrace(**steps)


@pytest.mark.parametrize("function", [gae, lambda_returns, discounted])
def test_every_function_checks_shapes(function):
    names = NAMES[1:] if function is gae else ["rewards", "discounts", "next_values", "cuts"]
    steps = dict(zip(NAMES, random_case(0, 5, 3), strict=True))
    arguments = {name: steps[name] for name in names} | {"next_values": steps["next_values"][:, :1]}
    with pytest.raises(ValueError, match=r"^next_values: expected shape"):
        function(**arguments)


def test_other_wrong_input_is_refused():
    _, rewards, discounts, values, next_values, cuts = random_case(0, 5, 3)
    with pytest.raises(ValueError, match="cuts: expected bool, got float64"):
        gae(rewards, discounts, values, next_values, cuts.double())
    with pytest.raises(ValueError, match=r"expected \[T, B\] with at least one step, got \[5\]"):
        gae(rewards[:, 0], discounts[:, 0], values[:, 0], next_values[:, 0], cuts[:, 0])
    with pytest.raises(ValueError, match="at least one step"):
        gae(rewards[:0], discounts[:0], values[:0], next_values[:0], cuts[:0])
    with pytest.raises(ValueError, match="n: must be at least 1, got 0"):
        n_step(rewards, discounts, next_values, cuts, 0)
    with pytest.raises(ValueError, match="next_values: expected shape"):
        n_step(rewards, discounts, next_values[:1], cuts, 2)
    with pytest.raises(ValueError, match="rewards: expected a tensor, got list"):
        check_shapes(rewards=[1.0])


def test_no_gradient_flows_and_no_input_changes():
    steps = [x.requires_grad_() if x.is_floating_point() else x for x in random_case(1, 6, 2)]
    before = [x.detach().clone() for x in steps]
    rewards, discounts, next_values, cuts = steps[1], steps[2], steps[4], steps[5]
    outputs = [
        *vtrace(*steps),
        gae(*steps[1:]),
        lambda_returns(rewards, discounts, next_values, cuts),
        n_step(rewards, discounts, next_values, cuts, 3),
    ]
    assert not any(output.requires_grad for output in outputs)
    assert all(torch.equal(x, y) for x, y in zip(steps, before, strict=True))


def test_an_action_of_several_parts_has_one_ratio():
    log_mu, log_pi = math.log(1 / 2) + math.log(1 / 3), math.log(0.8) + math.log(0.25)
    assert (log_mu, log_pi) == pytest.approx((-1.791759, -1.609438), abs=1e-6)
    out = vtrace(column([log_pi - log_mu]), *case([1], [0], 0, 0.9), rho_clip=None)
    assert out.vs.item() == pytest.approx(1.2)
    assert vtrace(column([log_pi - log_mu]), *case([1], [0], 0, 0.9)).vs.item() == pytest.approx(1.0)  # 0.75: clipped by part
