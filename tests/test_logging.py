"""Numbers of a user's own, and the services that rows go to."""

from __future__ import annotations

import json

import pytest
import yaml

from modrl.agent.actors import ActorCritic
from modrl.agent.algorithms import IMPALA
from modrl.agent.storages import Fresh
from modrl.config import BadInput
from modrl.envs import Gym
from modrl.scheme.places.base import WorkerError
from tests.runs import small, table

SCHEMES = ["local", "sebulba", {"gradient": {"workers": 2, "place": "thread"}, "collection": {"workers": 2, "place": "thread"}}]


class Telling(IMPALA, name="telling"):
    def loss(self, batch):
        self.log("mine/columns", batch.reward.shape[1])
        self.log("mine/reward", batch.reward.mean())
        return super().loss(batch)


class TellingActor(ActorCritic, name="telling_actor"):
    def act(self, *arguments, **options):
        self.log("mine/acted", 3.0)
        return super().act(*arguments, **options)


class TellingEnvs(Gym, name="telling_envs"):
    def step(self, action):
        then = super().step(action)
        self.log("mine/paid", float(then.reward.sum()))
        return then


class TellingStorage(Fresh, name="telling_storage"):
    def insert(self, rollout):
        self.log("mine/inserted", rollout.reward.size)
        super().insert(rollout)


ALL = {
    "algorithm": {"name": "tests.test_logging:Telling", "reward": "none"},
    "actor": {"name": "tests.test_logging:TellingActor", "torso": {"name": "mlp", "hidden": [16]}},
    "envs": {"name": "tests.test_logging:TellingEnvs", "id": "modrl/Corridor-v0", "count": 8},
    "storage": {"name": "tests.test_logging:TellingStorage", "horizon": 5, "batch": 8},
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_any_component_logs_is_a_column_of_means(scheme, tmp_path):
    small(**ALL, scheme=scheme).run(tmp_path)
    rows = table(tmp_path)
    learners, collectors = (2, 4) if isinstance(scheme, dict) else (1, 2 if scheme == "sebulba" else 1)
    for row in rows:
        assert row["mine/columns"] == 8 / learners
        assert row["mine/acted"] == 3
        assert row["mine/inserted"] == 40 / collectors
    steps = 40 / 8 * collectors  # of each update
    paid, mean = (sum(row[name] for row in rows) for name in ("mine/paid", "mine/reward"))
    if scheme != "sebulba":  # which collects what it never learns from
        assert paid * steps == pytest.approx(mean * 40, rel=1e-4)


def test_the_mean_is_over_all_that_was_logged_between_two_rows(tmp_path):
    class Counts(IMPALA, name="counts"):
        seen = 0

        def loss(self, batch):
            Counts.seen += 1
            self.log("number", Counts.seen)
            return super().loss(batch)

    from modrl import Experiment
    from tests.runs import SMALL

    Experiment.from_dict({**SMALL, "algorithm": Counts.Config(reward="none"), "logging": {"tensorboard": False, "every": 160}}).run(tmp_path)
    assert [row["number"] for row in table(tmp_path)] == [2.5, 6.5, 10.5, 14.5, 18.5]


def test_a_name_that_is_taken_is_refused(tmp_path):
    class Taken(IMPALA, name="taken"):
        def loss(self, batch):
            self.log(self.config.column, 1.0)
            return super().loss(batch)

        class Config(IMPALA.Config):
            column: str = "updates"

    from modrl import Experiment
    from tests.runs import SMALL

    for column in ("updates", "entropy", "grad_norm", "loss/value", "time/act", "eval/length"):
        with pytest.raises((ValueError, WorkerError), match=f"{column} was logged, which is the name of a column"):
            Experiment.from_dict({**SMALL, "algorithm": Taken.Config(reward="none", column=column)}).run(tmp_path / column.replace("/", "-"))


def test_what_is_no_number_is_an_error_at_once():
    algorithm = Fresh.Config(horizon=5, batch=8).build(batch=8, generator=None)
    with pytest.raises((TypeError, ValueError)):
        algorithm.log("name", "text")


# --- services ---


def test_a_service_that_is_not_installed_says_how_to(tmp_path, monkeypatch):
    import sys

    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(BadInput, match=rf"logging\.{name} needs {name}: pip install 'modrl\[{name}\]'"):
            small(logging={name: {}}).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_and_biases_offline_has_every_row_under_one_run(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    history, log = [], wandb.Run.log

    def heard(self, data, **options):
        history.append(data)
        log(self, data, **options)

    monkeypatch.setattr(wandb.Run, "log", heard)
    settings = {"logging": {"tensorboard": False, "wandb": {"project": "toys", "mode": "offline"}}}
    small(**settings, steps=400).run(tmp_path / "run")
    small(**settings).run(tmp_path / "run", resume=True)
    folders = sorted((tmp_path / "run" / "wandb").glob("offline-run-*"))
    identity = json.loads((tmp_path / "run" / "loggers.json").read_text())["wandb"]
    assert len(folders) == 2
    assert all(identity in folder.name for folder in folders)  # with a number behind it where both began in one second
    assert all(next(folder.glob("*.wandb")).stat().st_size > 0 for folder in folders)
    rows = table(tmp_path / "run")
    assert [record["env_steps"] for record in history] == [row["env_steps"] for row in rows]
    assert [record["loss/total"] for record in history] == pytest.approx([row["loss/total"] for row in rows], rel=1e-5)


def test_mlflow_has_every_row_under_one_run(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    settings = {"logging": {"tensorboard": False, "mlflow": {"experiment": "toys"}}}
    small(**settings, steps=400).run(tmp_path / "run")
    small(**settings).run(tmp_path / "run", resume=True)
    identity = json.loads((tmp_path / "run" / "loggers.json").read_text())["mlflow"]
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    history, rows = client.get_metric_history(identity, "loss/total"), table(tmp_path / "run")
    assert [point.step for point in history] == [row["env_steps"] for row in rows]
    assert [point.value for point in history] == pytest.approx([row["loss/total"] for row in rows], rel=1e-5)
    run = client.get_run(identity)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "small-1")
    path = client.download_artifacts(identity, "experiment.yaml", str(tmp_path))
    assert yaml.safe_load(open(path).read())["name"] == "small"  # noqa: SIM115
