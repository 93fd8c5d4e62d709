"""`modrl verify` finds nothing wrong where nothing is, and each fault that is planted."""

from __future__ import annotations

import pytest
import torch

from modrl.agent.actors import ActorCritic
from modrl.agent.optimizers import Optimizer
from modrl.scheme import gradient, parts, update
from modrl.scheme.collect import Collector
from modrl.scheme.collectors import Collectors
from modrl.scheme.compute import State
from modrl.scheme.replica import Replica
from modrl.tree import to_torch
from modrl.verify import BOOKS, checks
from tests.runs import small
from tests.scheme.tiny import counting

THREADS = ("here", "thread")
PARALLEL = {"collection": {"workers": 2, "place": "thread"}}
LEARNERS = {"gradient": {"workers": 2, "place": "thread"}}
REDUCED = {**LEARNERS, "update": "all_reduce"}
AVERAGED = {**LEARNERS, "update": {"average": 1}}


def narrow(**changes):
    return small(
        **{"envs": {"name": "gym", "id": "modrl/Corridor-v0", "count": 4}, "storage": {"name": "fresh", "horizon": 5, "batch": 4}, **changes}
    )


def failures(outcomes):
    return [outcome.name for outcome in outcomes if outcome.passed is False]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_nothing_is_wrong_where_nothing_was_planted(reduction):
    experiment = narrow(algorithm={"name": "impala", "reduction": reduction}, optimizer={"name": "rmsprop"})
    with checks(experiment, THREADS) as made:
        outcomes = list(made.run())
    assert [outcome for outcome in outcomes if outcome.passed is not True] == []
    assert len(outcomes) >= 25


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"name": "ppo", "epochs": 2, "minibatches": 2}},
        {"actor": {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [8]}, "memory": {"name": "lstm", "size": 8}, "last_reward": True}},
        {"storage": {"name": "replay", "horizon": 5, "batch": 8, "fraction": 0.5}},
        {"storage": {"name": "replay", "horizon": 5, "batch": 8, "fraction": 1}},
        {"envs": counting(4, n=3, mode="next_step", end="truncated"), "actor": {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [8]}}},
    ],
    ids=["ppo", "lstm", "replay", "free", "filler"],
)
def test_nothing_is_wrong_with_other_agents(changes):
    with checks(narrow(**changes), THREADS) as made:
        outcomes = list(made.run())
    assert failures(outcomes) == []
    assert sum(outcome.passed is None for outcome in outcomes) <= 3


class Buffered(ActorCritic, name="buffered"):
    """Its logits are shifted by a buffer that learning moves."""

    class Config(ActorCritic.Config):
        pass

    def __init__(self, config, **spaces):
        super().__init__(config, **spaces)
        self.register_buffer("shift", torch.zeros(self.head.size))

    def _say(self, *arguments):
        said = super()._say(*arguments)
        return said._replace(parameters=said.parameters + self.shift)

    def forward(self, batch):
        out = super().forward(batch)
        if self.training:
            self.shift = self.shift + torch.arange(float(len(self.shift)))
        return out


def average_wrongly(monkeypatch):
    average = Replica._average

    def wrong(self):
        self._size += 1
        average(self)
        self._size -= 1

    monkeypatch.setattr(Replica, "_average", wrong)


def never_update_one(monkeypatch):
    collect = Collector.collect

    def wrong(self, weights):
        if self.lanes[0].envs.numbers[0] and self.version >= 0:
            self.version = weights.version
        return collect(self, weights)

    monkeypatch.setattr(Collector, "collect", wrong)


def lag_by_one_more(monkeypatch):
    count = gradient._News.count

    def wrong(self, batch, version, steps_per_round):
        count(self, batch, version + steps_per_round, steps_per_round)

    monkeypatch.setattr(gradient._News, "count", wrong)


def gradient_lag_by_one_more(monkeypatch):
    apply = update.Updater.apply

    def wrong(self, gradients):
        return apply(self, [g._replace(version=g.version - 1) for g in gradients])

    monkeypatch.setattr(update.Updater, "apply", wrong)


def drop_a_rollout(monkeypatch):
    pull = Collectors.pull

    def wrong(self, weights, wait=True):
        rollouts = pull(self, weights)
        return pull(self, weights) if self.group.pulls == 2 else rollouts

    monkeypatch.setattr(Collectors, "pull", wrong)


def learn_twice_from_a_rollout(monkeypatch):
    pull = Collectors.pull

    def wrong(self, weights, wait=True):
        if self.group.pulls == 2 and hasattr(self, "last"):
            return self.__dict__.pop("last")
        self.last = pull(self, weights)
        return self.last

    monkeypatch.setattr(Collectors, "pull", wrong)


def keep_buffers_back(monkeypatch):
    class Wrong(State):
        def load(self, state):
            with torch.no_grad():
                for name, parameter in self.module.named_parameters():
                    parameter.copy_(to_torch(state[name]))

    monkeypatch.setattr("modrl.scheme.collect.State", Wrong)


def count_filler(monkeypatch):
    count = gradient._News.count

    def wrong(self, batch, version, steps_per_round):
        count(self, batch, version, steps_per_round)
        self.env_steps += int((~batch.valid[:, batch.fresh]).sum())

    monkeypatch.setattr(gradient._News, "count", wrong)


def weigh_filler(monkeypatch):
    loss = gradient.GradientWorker._next_loss

    def wrong(self):
        found = loss(self)
        return None if found is None else found._replace(valid=torch.ones_like(found.valid))

    monkeypatch.setattr(gradient.GradientWorker, "_next_loss", wrong)


def average_sums(monkeypatch):
    total = update._sum

    def wrong(gradients):
        return {name: [tensor / len(gradients) for tensor in tensors] for name, tensors in total(gradients).items()}

    monkeypatch.setattr(update, "_sum", wrong)


def share_seeds(monkeypatch):
    generator = parts.generator
    monkeypatch.setattr(parts, "generator", lambda seed, role, number=0, *rest, **options: generator(seed, role, 0, *rest, **options))


def share_env_seeds(monkeypatch):
    monkeypatch.setattr(parts, "seed_of", lambda seed, role, number=0, attempts=(): 7)


def take_the_first_workers_gradient(monkeypatch):
    total = update._sum
    monkeypatch.setattr(update, "_sum", lambda gradients: total([gradients[0]] * len(gradients)))


def forget_the_optimizer(monkeypatch):
    monkeypatch.setattr(Optimizer, "restore", lambda self, state: None)


SHARDS = "2 gradient workers on shards = 1 on the whole"
FILLER = {"envs": counting(4, n=3, mode="next_step"), "actor": {"name": "actor_critic", "torso": {"name": "mlp", "hidden": [8]}}}
BUFFERS = {"actor": {"name": "tests.test_verify:Buffered", "torso": {"name": "mlp", "hidden": [8]}}}


@pytest.mark.parametrize(
    ("plant", "scheme", "changes", "check"),
    [
        (average_wrongly, AVERAGED, {}, "average: 1 = all_reduce, for SGD"),
        (never_update_one, PARALLEL, {}, "the weights that a rollout names are those that acted"),
        (lag_by_one_more, "local", {}, "policy lags are told as they are"),
        (gradient_lag_by_one_more, "local", {}, "gradient lags are told as they are"),
        (drop_a_rollout, "local", {}, "every rollout is learned from once"),
        (learn_twice_from_a_rollout, "local", {}, "every rollout is learned from once"),
        (keep_buffers_back, REDUCED, BUFFERS, "the weights that a rollout names are those that acted"),
        (count_filler, "local", FILLER, "env steps are the valid steps learned from"),
        (weigh_filler, "local", FILLER, "gradients weigh valid steps alone"),
        (average_sums, None, {"algorithm": {"name": "impala", "reduction": "sum"}}, "the same by SGD, which sees the gradient's size"),
        (share_seeds, PARALLEL, {}, "workers and environments share no seed"),
        (share_env_seeds, PARALLEL, {}, "workers and environments share no seed"),
        (take_the_first_workers_gradient, None, {}, SHARDS),
        (forget_the_optimizer, None, {}, "a resumed run = a straight one"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_fault_is_found(plant, scheme, changes, check, monkeypatch):
    """Without the fault the check passes, with it the check fails."""
    experiment = narrow(**changes)

    def passed():
        with checks(experiment, THREADS) as made:
            if check in BOOKS:
                made.trace(scheme)
                return next(outcome.passed for outcome in made.books() if outcome.name == check)
            return next(outcome.passed for outcome in made.pairs() if outcome.name == check)

    assert passed() is True
    plant(monkeypatch)
    assert passed() is False
