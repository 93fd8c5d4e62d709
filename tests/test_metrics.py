"""Rows of metrics, and the file that they are kept in."""

from __future__ import annotations

import csv

import pytest

from modrl.messages import Episode, Gradient
from modrl.metrics import COLUMNS, WINDOW, Metrics, MetricsFile, read_rows
from tests.runs import small, table, trained


def gradient(weight=4, last=True, lags=(), episodes=(), metrics=(), seconds=()):
    return Gradient({}, weight, 0, weight, last, tuple(episodes), tuple(lags), dict(metrics), dict(seconds))


def test_a_row_is_the_mean_per_valid_step_over_all_updates_and_workers():
    metrics = Metrics(action_repeat=4)
    metrics.record([gradient(1, metrics={"loss/value": 4.0}), gradient(3, metrics={"loss/value": 0.0})], [0, 0], {})
    metrics.record([gradient(4, metrics={"loss/value": 12.0, "kl": 2.0})], [0], {})
    row = metrics.row(8, 2)
    assert row["loss/value"] == 16 / 8
    assert row["kl"] == 2 / 4
    assert (row["env_steps"], row["frames"], row["updates"]) == (8, 32, 2)


def test_a_row_starts_anew_but_counts_on():
    metrics = Metrics(1)
    metrics.record(
        [gradient(lags=(1, 3), episodes=[Episode(2.0, 4, 0, {"success": 1.0})], metrics={"kl": 4.0})], [2], {"learning_rate": 0.1, "grad_norm": 1.0}
    )
    metrics.record([gradient(lags=(2,))], [0], {"learning_rate": 0.2, "grad_norm": 3.0})
    first = metrics.row(8, 2)
    assert (first["policy_lag_mean"], first["policy_lag_max"]) == (2, 3)
    assert (first["gradient_lag_mean"], first["gradient_lag_max"]) == (1, 2)
    assert (first["learning_rate"], first["grad_norm"]) == (0.2, 2.0)  # the last one; the mean
    assert (first["episodes"], first["episode_return"], first["episode_length"], first["episode/success"]) == (1, 2, 4, 1)
    metrics.record([gradient(episodes=[Episode(4.0, 6, 0, {"success": 0.0})])], [0], {})
    second = metrics.row(12, 3)
    assert (second["policy_lag_mean"], second["policy_lag_max"], second["learning_rate"]) == (None, None, None)
    assert (second["gradient_lag_mean"], second["gradient_lag_max"]) == (0, 0)
    assert (second["episodes"], second["episode_return"], second["episode_length"], second["episode/success"]) == (2, 3, 5, 0.5)
    assert "kl" not in second


def test_the_first_columns_are_those_agreed_on():
    row = Metrics(1).row(0, 0)
    assert tuple(row)[: len(COLUMNS)] == COLUMNS
    assert COLUMNS == (
        "env_steps", "frames", "updates", "wall_seconds", "episodes", "episode_return", "episode_length", "steps_per_second",
        "policy_lag_mean", "policy_lag_max", "gradient_lag_mean", "gradient_lag_max", "learning_rate", "eval_return",
    )  # fmt: skip
    assert row["episode_return"] is None
    assert row["eval_return"] is None


def test_the_return_is_that_of_the_last_hundred_episodes():
    metrics = Metrics(1)
    metrics.record([gradient(episodes=[Episode(float(i), i, 0, {}) for i in range(WINDOW + 50)])], [0], {})
    row = metrics.row(4, 1)
    assert row["episodes"] == 150
    assert row["episode_return"] == sum(range(50, 150)) / 100


def test_an_update_whose_loss_was_empty_leaves_its_cells_empty():
    metrics = Metrics(1)
    metrics.record([gradient(0, metrics={"loss/value": 0.0})], [0], {})
    assert metrics.row(0, 0)["loss/value"] is None


def test_a_batch_is_complete_with_its_last_loss_on_every_worker():
    metrics = Metrics(1)
    for lasts, is_open in (((False, False), True), ((True, False), True), ((True, True), False)):
        metrics.record([gradient(last=last) for last in lasts], [0, 0], {})
        assert metrics.open is is_open


def test_state_goes_on():
    metrics = Metrics(1)
    metrics.record([gradient(episodes=[Episode(2.0, 4, 0, {"success": 1.0})])], [0], {})
    again = Metrics(1)
    again.restore({**metrics.state(), "seconds": 100.0})
    again.start(4)
    row = again.row(4, 1)
    assert (row["episodes"], row["episode_return"], row["episode/success"]) == (1, 2, 1)
    assert row["wall_seconds"] == pytest.approx(100, abs=1)
    assert row["steps_per_second"] == 0


# --- metrics.csv ---


def row(updates, **more):
    return dict.fromkeys(COLUMNS) | {"env_steps": 10 * updates, "updates": updates} | more


def test_a_late_column_does_not_shift_earlier_ones(tmp_path):
    file = MetricsFile(tmp_path / "metrics.csv")
    for i in range(1, 9):
        file.append(row(i, **{"loss/a": i / 2}, **({"episode/late": float(i)} if i >= 5 else {})))
    with open(tmp_path / "metrics.csv", newline="") as opened:
        rows = list(csv.reader(opened))
    assert {len(cells) for cells in rows} == {len(COLUMNS) + 2}
    assert rows[0][-2:] == ["loss/a", "episode/late"]
    assert [cells[-2:] for cells in rows[4:6]] == [["2", ""], ["2.5", "5"]]
    assert [float(cells[2]) for cells in rows[1:]] == list(range(1, 9))


def test_a_missing_value_is_an_empty_cell(tmp_path):
    file = MetricsFile(tmp_path / "metrics.csv")
    file.append(row(1, a=1.0, b=float("nan")))
    file.append(row(2, b=2.0))
    _, rows = read_rows(tmp_path / "metrics.csv")
    assert [cells[-2:] for cells in rows] == [["1", ""], ["", "2"]]


def test_a_cut_drops_what_is_past_the_checkpoint_and_appending_goes_on(tmp_path):
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    for i in range(1, 11):
        file.append(row(i, late=1.0 if i > 8 else None))
    again = MetricsFile(path)
    again.cut(8)
    for i in range(9, 16):
        again.append(row(i, late=2.0, later=3.0))
    columns, rows = read_rows(path)
    assert [int(cells[2]) for cells in rows] == list(range(1, 16))
    assert columns[-2:] == ["late", "later"]
    assert {len(cells) for cells in rows} == {len(columns)}
    assert rows[8][-2:] == ["2", "3"]


def test_a_row_cut_off_in_mid_write_is_left_out(tmp_path):
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    file.append(row(1))
    with open(path, "a") as opened:
        opened.write("20,2")
    assert len(read_rows(path)[1]) == 1
    again = MetricsFile(path)
    again.cut(5)
    again.append(row(2))
    assert [cells[2] for cells in read_rows(path)[1]] == ["1", "2"]


def test_whole_numbers_stay_whole(tmp_path):
    file = MetricsFile(tmp_path / "metrics.csv")
    file.append(row(123_456_789))
    assert read_rows(tmp_path / "metrics.csv")[1][0][0] == "1234567890"


# --- in a run ---


def test_every_row_of_a_run_has_every_column_and_the_numbers_add_up(tmp_path):
    experiment = small(envs={"name": "gym", "id": "tests.envs.helpers:Rewards", "count": 8, "episode_info": ["success"]})
    result = experiment.run(tmp_path / "run")
    rows = table(tmp_path / "run")
    assert [row["updates"] for row in rows] == list(range(1, 21))
    assert [row["frames"] for row in rows] == [40 * i for i in range(1, 21)]
    assert all(row["learning_rate"] == 1e-3 and row["policy_lag_max"] == 0 for row in rows)
    assert rows[-1]["episode/success"] == pytest.approx(0.3)
    assert all(row["loss/total"] == pytest.approx(row["loss/policy"] + row["loss/value"] + row["loss/entropy"], rel=1e-4) for row in rows)
    assert "grad_norm" in rows[0]
    stages = {f"time/{stage}" for stage in ("act", "env", "record", "transfer", "batch", "loss", "backward", "optimise")}
    assert stages <= rows[0].keys()
    spent = sum(row[stage] for row in rows[1:] for stage in stages)
    assert 0 < spent <= rows[-1]["wall_seconds"]  # one worker, whose stages follow one another
    assert result.metrics["env_steps"] == 800


def test_losses_compare_across_reductions(tmp_path):
    """A sum and a mean are logged alike: per valid step."""
    one, other = (
        next(small(algorithm={"name": "impala", "reward": "none", "reduction": reduction}, steps=40).stream(tmp_path / reduction))
        for reduction in ("sum", "mean")
    )
    assert one["loss/total"] == pytest.approx(other["loss/total"])


def test_frames_count_the_action_repeat(tmp_path):
    envs = {"name": "atari", "game": "pong", "count": 2, "action_repeat": 4}
    result = small(envs=envs, actor={"name": "actor_critic"}, storage={"name": "fresh", "horizon": 4, "batch": 2}, steps=8).run(tmp_path / "run")
    assert (result.metrics["env_steps"], result.metrics["frames"]) == (8, 32)


def test_logging_every_so_many_steps_gives_fewer_rows_over_more_updates(tmp_path):
    trained(small(logging={"every": 200, "tensorboard": False}), tmp_path / "run")
    rows = table(tmp_path / "run")
    assert [row["updates"] for row in rows] == [5, 10, 15, 20]


def test_tensorboard_gets_the_same_rows(tmp_path):
    trained(small(logging={"tensorboard": True}), tmp_path / "run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    rows = table(tmp_path / "run")
    assert [event.step for event in events.Scalars("loss/total")] == [row["env_steps"] for row in rows]
    assert [event.value for event in events.Scalars("loss/total")] == pytest.approx([row["loss/total"] for row in rows], rel=1e-5)
    assert [event.value for event in events.Scalars("run/updates")] == list(range(1, 21))
