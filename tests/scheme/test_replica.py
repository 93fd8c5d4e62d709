"""Gradient workers that hold the weights themselves: equal to a central updater where they must be, and whole again after a loss."""

from __future__ import annotations

import pytest

from tests.runs import assert_equal_weights, small, table, trained, weights_of

LEARNERS = {"gradient": {"place": "thread", "workers": 2}}
SGD = {"name": "torch.optim:SGD", "lr": 0.05}
PPO = {"name": "ppo", "epochs": 2, "minibatches": 2}


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_all_reduce_is_a_central_update(reduction, tmp_path):
    algorithm = {"name": "impala", "reduction": reduction}
    central = trained(small(algorithm=algorithm, scheme=LEARNERS), tmp_path / "central")
    reduced = trained(small(algorithm=algorithm, scheme={**LEARNERS, "update": "all_reduce"}), tmp_path / "reduced")
    assert reduced["updater"]["version"] == central["updater"]["version"] == 20
    assert_equal_weights(weights_of(central), weights_of(reduced))
    names = ("learning_rate", "grad_norm", "loss/total")
    columns = [[[row[name] for name in names] for row in table(tmp_path / name)] for name in ("central", "reduced")]
    assert columns[0] == columns[1]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_an_average_of_every_step_is_an_all_reduce_for_sgd(reduction, tmp_path):
    experiment = {"algorithm": {"name": "impala", "reduction": reduction}, "optimizer": SGD}
    reduced = trained(small(**experiment, scheme={**LEARNERS, "update": "all_reduce"}), tmp_path / "reduced")
    averaged = trained(small(**experiment, scheme={**LEARNERS, "update": {"average": 1}}), tmp_path / "averaged")
    assert_equal_weights(weights_of(reduced), weights_of(averaged), tolerance=2e-6)


def test_weights_differ_between_averages_and_are_one_after_them(tmp_path):
    """20 updates: after the 20th with an average every 4 they are one; with one every 6, the last was after the 18th."""
    for every, equal in ((4, True), (6, False)):
        state = trained(small(optimizer=SGD, scheme={**LEARNERS, "update": {"average": every}}), tmp_path / str(every))
        one, other = (worker["replica"]["acting"] for worker in state["workers"])
        if equal:
            assert_equal_weights(one, other)
        else:
            with pytest.raises(AssertionError):
                assert_equal_weights(one, other)


@pytest.mark.parametrize("update", ["all_reduce", {"average": 3}], ids=["all_reduce", "average"])
def test_a_resumed_run_of_replicas_is_the_straight_one(update, tmp_path):
    changes = {"algorithm": PPO, "scheme": {**LEARNERS, "update": update}, "checkpoint": {"every": 400}}
    straight = trained(small(**changes), tmp_path / "straight")
    trained(small(**changes, steps=10 * 8 * 5), tmp_path / "resumed")
    resumed = trained(small(**changes), tmp_path / "resumed", resume=True)
    assert_equal_weights(weights_of(straight), weights_of(resumed))


def test_an_evaluation_is_of_what_the_replicas_have_learned(tmp_path):
    changes = {"steps": 400, "optimizer": {"name": "adam", "lr": 1e-2}, "evaluation": {"every": 40, "episodes": 20}}
    returns = []
    for update in ("central", "all_reduce"):
        trained(small(**changes, scheme={**LEARNERS, "update": update}), tmp_path / update)
        returns.append([row["eval_return"] for row in table(tmp_path / update)])
    assert returns[0] == returns[1]
    assert len(set(returns[0])) > 1


@pytest.mark.parametrize("update", [pytest.param("all_reduce", id="all_reduce"), pytest.param({"average": 3}, id="average", marks=pytest.mark.slow)])
def test_replicas_on_ray_are_those_in_threads(update, cluster, tmp_path):
    runs = [trained(small(scheme={"gradient": {"place": place, "workers": 2}, "update": update}), tmp_path / place) for place in ("thread", "ray")]
    assert_equal_weights(*map(weights_of, runs))
