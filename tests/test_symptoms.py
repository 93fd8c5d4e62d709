"""Faults that raise nothing are told, once, and only where they are."""

from __future__ import annotations

import json
import logging

import gymnasium
import numpy as np
import pytest

from modrl.envs.toy import Toy
from modrl.symptoms import ROWS, TEXTS, Symptoms
from tests.runs import small, table


class Quiet(Toy):
    """Shows the same always, and never pays; three steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, pays=0.0, shows=False):
        super().__init__()
        self.pays, self.shows = pays, shows

    def observe(self):
        return np.full(2, self.t / 10 if self.shows else 0.5, np.float32)

    def outcome(self, action):
        return self.pays, self.t >= 3, False


class Narrow(Quiet):
    """Actions within a hundredth: what a network gives first lies outside."""

    action_space = gymnasium.spaces.Box(-0.01, 0.01, (1,), np.float32)


def told(tmp_path, caplog, env="Quiet", **changes):
    kwargs = changes.pop("kwargs", {})
    with caplog.at_level(logging.WARNING, "modrl"):
        small(envs={"name": "gym", "id": f"tests.test_symptoms:{env}", "count": 8, "kwargs": kwargs}, **changes).run(tmp_path)
    info = json.loads((tmp_path / "run.json").read_text())
    found = [entry["symptom"] for entry in info.get("symptoms", [])]
    for name in found:
        assert caplog.text.count(TEXTS[name]) == 1
    return set(found)


def test_constant_observations_and_rewards_of_zero_are_told(tmp_path, caplog):
    assert told(tmp_path, caplog) == {"constant_observations", "reward_zero"}


def test_nothing_is_told_where_nothing_is_wrong(tmp_path, caplog):
    assert told(tmp_path, caplog, kwargs={"pays": 0.1, "shows": True}) == set()


def test_actions_at_the_bounds_are_told(tmp_path, caplog):
    assert told(tmp_path, caplog, env="Narrow", kwargs={"pays": 0.1, "shows": True}) == {"saturated_actions"}


def test_a_value_loss_that_drowns_the_policy_is_told(tmp_path, caplog):
    costs = {"algorithm": {"name": "ppo", "reward": "none"}}
    assert told(tmp_path, caplog, kwargs={"pays": 1e5, "shows": True}, **costs) == {"value_dominates"}
    assert table(tmp_path)[0]["symptoms/value_dominates"] == 1


def test_looking_changes_nothing_that_is_learned(tmp_path, monkeypatch):
    from modrl.scheme import symptoms
    from tests.runs import assert_equal_weights, trained, weights_of

    one = trained(small(), tmp_path / "one")
    monkeypatch.setattr(symptoms, "due", lambda batches: True)
    other = trained(small(), tmp_path / "other")
    monkeypatch.setattr(symptoms, "due", lambda batches: False)
    third = trained(small(), tmp_path / "third")
    assert_equal_weights(weights_of(one), weights_of(other))
    assert_equal_weights(weights_of(one), weights_of(third))


@pytest.mark.parametrize(
    ("row", "progress", "symptom"),
    [
        ({"entropy": 0.005}, 0.1, "entropy_collapsed"), ({"entropy": 0.02}, 0.1, None), ({"entropy": 0.005}, 0.5, None),
        ({"clipped": 0.9}, 0.5, "ratio_clipped"), ({"clipped": 0.5}, 0.5, None),
    ],
)  # fmt: skip
def test_what_rows_show_has_to_last(row, progress, symptom):
    symptoms, found = Symptoms(gymnasium.spaces.Discrete(3)), []
    for number in range(3 * ROWS):
        found += [(number, entry["symptom"]) for entry in symptoms.look({"env_steps": number, **row}, [1.0], progress)]
    assert found == ([] if symptom is None else [(ROWS - 1, symptom)])
    symptoms = Symptoms(gymnasium.spaces.Discrete(3))
    for number in range(3 * ROWS):  # never so many in a row
        shown = row if number % ROWS else {"entropy": 1.0, "clipped": 0.0}
        assert not symptoms.look({"env_steps": number, **shown}, [1.0], progress)


def test_a_policy_over_continuous_actions_has_no_entropy_to_compare_with():
    symptoms = Symptoms(gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3), b=gymnasium.spaces.Box(-1, 1)))
    assert not any(symptoms.look({"env_steps": number, "entropy": -5.0}, [1.0], 0.0) for number in range(100))
