"""The collectors of one gradient worker: a group, how often it is given new weights, and the inference servers that it asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from modrl.messages import Event, Lap, Rollout, Weights
from modrl.scheme.group import Group, Handle
from modrl.scheme.inference import Client
from modrl.scheme.places.base import PeerLost, WorkerLost
from modrl.scheme.stages import Stages


class Collectors:
    """What a gradient worker pulls rollouts from. Its collectors are given new weights in every `interval`-th pull."""

    def __init__(self, group: Group, interval: int = 1, stages: Stages | None = None) -> None:
        self.group = group
        self.group.stages = stages or group.stages
        self.interval = interval
        self._given: Weights | None = None

    def pull(self, weights: Weights, wait: bool = True) -> list[Rollout]:
        """Rollouts, as the group's `pull`."""
        if self._given is None or self.group.pulls % self.interval == 0:
            self._given = weights
        return self.group.pull(self._given, wait)

    def counts(self) -> Counter[str]:
        """What was counted since this was last asked, by column."""
        return self.group.counts()

    def seconds(self) -> dict[str, float]:
        """How long rollouts were waited for, and weights handed out, since this was last asked."""
        return self.group.stages.take()

    def laps(self) -> tuple[Lap, ...]:
        """The same one by one, for a profile."""
        return self.group.stages.take_laps()

    def events(self) -> tuple[Event, ...]:
        """What befell the workers since this was last asked."""
        return self.group.events()

    def state(self) -> dict[str, Any]:
        """Plain data to continue from."""
        given = self._given._asdict() if self._given is not None and self.interval > 1 else None
        return {"group": self.group.state(), "given": given}

    def restore(self, state: dict[str, Any]) -> bool:
        """Continues from `state`; whether all episodes go on where they were."""
        self._given = None if state["given"] is None else Weights(**state["given"])
        return self.group.restore(state["group"])

    def close(self) -> None:
        """Ends the workers."""
        self.group.close()


class ServedGroup(Group):
    """Collectors that ask inference servers; each pull hands the servers the new weights first.

    Collector i asks server i modulo their number, by the client that `client(server)` makes. A server that is lost is
    replaced like a collector: the collectors that waited for it drop their rollouts and start anew.
    """

    def __init__(
        self, *arguments: Any, servers: list[Handle], client: Callable[[Handle], Client], recruit_server: Callable[[int], Handle], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.servers = servers
        self.client = client
        self.recruit_server = recruit_server
        self._weights: Any = None  # that the servers have, as shared
        self._counts = Counter[str]()
        for worker in range(len(self.workers)):
            self._recruited(worker)

    def pull(self, weights: Weights, wait: bool = True) -> list[Any]:
        self._weights = self.share(weights)
        for index in range(len(self.servers)):
            self._load(index)
        return super().pull(weights._replace(acting={}), wait)

    def _load(self, index: int) -> None:
        while True:
            try:
                self._counts.update(self.servers[index].submit("load", self._weights).result())
                return
            except WorkerLost as error:
                self._replace_server(index, error)

    def _replace_server(self, index: int, error: WorkerLost) -> None:
        self._spend(error)
        self._note("restart", self.servers[index].name, error.trace)
        self.servers[index].discard()
        self.servers[index] = self.recruit_server(index)
        for worker in range(index, len(self.workers), len(self.servers)):
            self.workers[worker].submit("serve", self.client(self.servers[index]))

    def _failed(self, task: Any, error: BaseException) -> None:
        if not isinstance(error, PeerLost):
            super()._failed(task, error)
            return
        self._tasks.remove(task)
        self._load(task.worker % len(self.servers))
        self._note("stranded", self.workers[task.worker].name, "its inference server was lost", dropped=1)
        if self._job is not None:
            self._start(task.worker)

    def _recruited(self, worker: int) -> None:
        self.workers[worker].submit("serve", self.client(self.servers[worker % len(self.servers)]))

    def counts(self) -> Counter[str]:
        counts, self._counts = super().counts() + self._counts, Counter()
        return counts

    def close(self) -> None:
        super().close()
        for server in self.servers:
            server.close()
