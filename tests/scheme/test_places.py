"""The same agent in every home: equal numbers where the scheme waits for all, twice and everywhere."""

from __future__ import annotations

import pytest

from tests.runs import assert_equal_weights, small, table, trained, weights_of

COLLECTORS = {"collection": {"workers": 2}}
LEARNERS = {"gradient": {"workers": 2}}


def at(place, scheme):
    """The scheme with the workers of its group moved."""
    return {group: {**settings, "place": place} for group, settings in scheme.items()}


@pytest.mark.parametrize("scheme", ["local", COLLECTORS, LEARNERS], ids=["local", "parallel", "dppo"])
def test_a_synchronous_scheme_gives_the_same_numbers_twice(scheme, tmp_path):
    runs = [trained(small(scheme=scheme), tmp_path / name) for name in "ab"]
    assert runs[0]["updater"]["version"] == 20
    assert_equal_weights(*map(weights_of, runs))
    losses = [[row["loss/total"] for row in table(tmp_path / name)] for name in "ab"]
    assert losses[0] == losses[1]


def test_another_seed_gives_other_numbers(tmp_path):
    runs = [trained(small(seed=seed), tmp_path / str(seed)) for seed in (1, 2)]
    with pytest.raises(AssertionError):
        assert_equal_weights(*map(weights_of, runs))


@pytest.mark.parametrize("scheme", [COLLECTORS, LEARNERS], ids=["parallel", "dppo"])
def test_here_thread_and_ray_give_identical_weights_after_20_updates(scheme, cluster, tmp_path):
    runs = {place: trained(small(scheme=at(place, scheme)), tmp_path / place) for place in ("here", "thread", "ray")}
    for place in ("thread", "ray"):
        assert runs[place]["updater"]["version"] == 20
        assert_equal_weights(weights_of(runs["here"]), weights_of(runs[place]))


def test_ppo_with_its_many_losses_is_the_same_on_ray(cluster, tmp_path):
    ppo = {"name": "ppo", "epochs": 2, "minibatches": 2}
    runs = [trained(small(algorithm=ppo, scheme=at(place, LEARNERS)), tmp_path / place) for place in ("here", "ray")]
    assert runs[0]["updater"]["version"] == 20 * 4
    assert_equal_weights(*map(weights_of, runs))


def test_sebulba_gives_the_same_numbers_twice_and_lags_exactly_one_round(tmp_path):
    runs = [trained(small(scheme="sebulba"), tmp_path / name) for name in "ab"]
    assert_equal_weights(*map(weights_of, runs))
    lags = [(row["policy_lag_mean"], row["policy_lag_max"]) for row in table(tmp_path / "a")]
    assert lags[0] == (0, 0)
    assert set(lags[1:]) == {(1, 1)}


@pytest.mark.parametrize(
    ("scheme", "bound", "gradient_bound"),
    [
        ("local", 0, 0),
        ("overlapped", 2, 0),
        ("parallel", 0, 0),
        ("impala", 4, 0),
        ("dppo", 0, 0),
        ("a3c", 0, 4),
        pytest.param("rapid", 4, 0, marks=pytest.mark.slow),
        pytest.param("fully_async", 10, 4, marks=pytest.mark.slow),
        ("seed", 4, 0),
        pytest.param("preemptive", 0, 0, marks=pytest.mark.slow),
        pytest.param("dd_ppo", 0, 0, marks=pytest.mark.slow),
        pytest.param("local_sgd", 0, 0, marks=pytest.mark.slow),
    ],
)
def test_a_preset_keeps_its_lag(scheme, bound, gradient_bound, cluster, tmp_path):
    experiment = small(scheme=scheme, steps=4000)
    trained(experiment, tmp_path / "run")
    rows = table(tmp_path / "run")
    assert rows[-1]["env_steps"] >= 4000
    assert max(row["policy_lag_max"] for row in rows if row["policy_lag_max"] is not None) <= bound
    assert max(row["gradient_lag_max"] for row in rows) <= gradient_bound


@pytest.mark.slow
def test_a3c_in_threads_lags_by_one_gradient_of_the_other_worker_on_average(tmp_path):
    scheme = {"preset": "a3c", "gradient": {"place": "thread"}}
    trained(small(scheme=scheme, steps=20_000), tmp_path / "run")
    lags = [row["gradient_lag_mean"] for row in table(tmp_path / "run")]
    assert 0.5 <= sum(lags) / len(lags) <= 1.5


@pytest.mark.parametrize(("scheme", "lag"), [("local", 0), ("sebulba", 1), ("overlapped", 2)])
def test_lag_is_counted_in_rounds_where_batches_are_given_up_too(scheme, lag, tmp_path):
    """With a bound on the KL divergence this small only the first loss of a batch is followed by a step."""
    algorithm = {"name": "ppo", "epochs": 2, "minibatches": 2, "target_kl": 1e-12}
    small(algorithm=algorithm, scheme=scheme, steps=10 * 40, optimizer={"name": "adam", "lr": 1e-2}).run(tmp_path / "run")
    rows = table(tmp_path / "run")
    assert [row["policy_lag_max"] for row in rows[2:]] == [lag] * 8
    assert rows[-1]["updates"] < 10 * 4
