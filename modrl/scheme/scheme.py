"""The scheme: who collects, who computes gradients, who waits for whom.

A scheme is a few numbers for each of two groups. It deals out the experiment's environments and batch, which are global,
so that two schemes differ in what their settings say and in nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from modrl.config import Document, Settings, merge, nearest, problem, read, read_file
from modrl.scheme.group import Group, Handle
from modrl.scheme.parts import Parts
from modrl.scheme.places.here import HereWorker
from modrl.scheme.places.thread import ThreadWorker


class Resources(Settings):
    """What one Ray worker of a group asks of the cluster."""

    cpus: float | None = Field(None, ge=0)
    """None: 1 on a cluster; 0 on a machine of one's own, whose cores are shared out by the operating system."""
    gpus: float = Field(0.0, ge=0)
    custom: dict[str, float] = {}


class Workers(Settings):
    """A group of workers that do the same task."""

    place: Literal["here", "thread", "ray"] = "here"
    workers: int = Field(1, ge=1)
    gather: int | Literal["all"] = "all"
    """Results per pull: every worker's, or so many in order of completion."""
    max_lag: int | None = Field(None, ge=0)
    """Pulls that a task may be behind; needed where not every worker is awaited."""
    resources: Resources = Resources()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if isinstance(self.gather, int) and not 1 <= self.gather <= self.workers:
            raise problem(f"must lie between 1 and {self.workers} (the number of workers), got {self.gather}", "gather")
        if self.gather == "all" and self.max_lag is not None:
            raise problem("has no effect with gather: all, where the lag is the number of tasks ahead; set it to null or gather fewer", "max_lag")
        if isinstance(self.gather, int) and self.max_lag is None:
            raise problem(f"missing; with gather: {self.gather} state how many pulls a result may be behind", "max_lag")
        if self.place != "ray" and self.resources != Resources():
            raise problem(f"have no effect with place: {self.place}; they are what a Ray worker asks for", "resources")
        return self

    @property
    def taken(self) -> int:
        """Results per pull."""
        return self.workers if self.gather == "all" else self.gather

    def check_lag(self, ahead: int) -> None:
        """Refuses what cannot keep `max_lag`: more tasks than pulls can take in time."""
        if isinstance(self.gather, int) and self.max_lag is not None:
            k, tasks = self.gather, self.workers * max(ahead, 1)
            room = k * (self.max_lag + (0 if ahead else 1))
            if tasks > room:
                what = f"{self.workers} workers × ahead {ahead} > gather {k} × max_lag {self.max_lag}"
                if not ahead:
                    what = f"{self.workers} workers > gather {k} × (max_lag {self.max_lag} + 1)"
                raise problem(f"cannot be kept: {what}; raise max_lag or gather, or use fewer workers", "max_lag")


class Collection(Workers):
    """The collectors of each gradient worker."""

    ahead: int = Field(0, ge=0)
    """Untaken tasks each worker may have while the caller learns."""

    @model_validator(mode="after")
    def _keeps_lag(self) -> Self:
        if self.ahead and self.place == "here":
            raise problem("has no effect with place: here, where nothing runs while the caller learns; use thread or ray", "ahead")
        self.check_lag(self.ahead)
        return self

    @property
    def lag_bound(self) -> int:
        """Pulls that a rollout may be behind."""
        return self.ahead if self.max_lag is None else self.max_lag


class Gradients(Workers):
    """The gradient workers. A gradient is applied before its worker's next one is started."""

    @model_validator(mode="after")
    def _keeps_lag(self) -> Self:
        self.check_lag(0)
        return self

    @property
    def alone(self) -> bool:
        """Whether shares are applied on arrival, each alone, rather than combined to the whole batch."""
        return self.taken < self.workers


class Scheme:
    """Starts the workers of an experiment and ends them."""

    class Config(Settings):
        """Settings of a scheme; `preset` names the one that they are laid over."""

        preset: str | None = None
        collection: Collection = Collection()
        gradient: Gradients = Gradients()
        update: Literal["central"] = "central"
        """Where gradients are applied: by the updater, which holds the optimisers."""

        @classmethod
        def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
            return {"anyOf": [{"enum": list(presets())}, handler(schema)]}

        @model_validator(mode="before")
        @classmethod
        def _over_preset(cls, value: Any) -> Any:
            return expand(Document(value if isinstance(value, dict) else {"preset": value}, {})).data if isinstance(value, (str, dict)) else value

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if self.collection.place == "ray" and self.gradient.place == "thread":
                raise problem("gradient workers in threads collect here or in threads of their own, not on ray", "collection.place")
            return self

    def __init__(self, config: Config, parts: Parts) -> None:
        self.config = config
        self.parts = parts
        self.cluster: Any = None

    def start(self) -> Group:
        """The gradient workers, ready to be pulled from, each with its collectors."""
        gradient, parts = self.config.gradient, self.parts
        if "ray" in (gradient.place, self.config.collection.place):
            from modrl.scheme.places.ray import Cluster

            self.cluster = Cluster(parts.machine.ray.address, parts.machine.ray.object_store)
            self.cluster.require(self._wanted())
        factories = {
            _name("gradient worker", index, gradient.workers): partial(
                parts.gradient_worker, index, partial(start_collection, self.config, parts, index, self._local())
            )
            for index in range(gradient.workers)
        }
        return start_group(gradient, "gradient", factories, parts, self._local())

    def _local(self) -> bool:
        return self.cluster is None or self.cluster.local

    def _wanted(self) -> dict[str, float]:
        wanted: dict[str, float] = {}
        counts = {"gradient": self.config.gradient.workers, "collection": self.config.gradient.workers * self.config.collection.workers}
        for name, count in counts.items():
            group: Workers = getattr(self.config, name)
            for resource, amount in _asked(group, self._local()).items() if group.place == "ray" else ():
                wanted[resource] = wanted.get(resource, 0) + amount * count
        return wanted

    def close(self) -> None:
        """Ends what was started beside the workers."""
        if self.cluster is not None:
            self.cluster.close()


def _asked(group: Workers, local: bool) -> dict[str, float]:
    cpus = group.resources.cpus if group.resources.cpus is not None else 0.0 if local else 1.0
    return {"CPU": cpus, "GPU": group.resources.gpus, **group.resources.custom}


def _name(role: str, index: int, count: int, within: str = "") -> str:
    return f"{role} {index}{within}" if count > 1 or within else role


def start_collection(config: Scheme.Config, parts: Parts, gradient_worker: int, local: bool) -> Group:
    """The collectors of one gradient worker, as a group."""
    collection = config.collection
    within = f" of gradient worker {gradient_worker}" if config.gradient.workers > 1 else ""
    factories = {
        f"collector {index}{within}": partial(parts.collector, gradient_worker * collection.workers + index) for index in range(collection.workers)
    }
    return start_group(collection, "collect", factories, parts, local, collection.ahead)


def start_group(settings: Workers, method: str, factories: Mapping[str, Any], parts: Parts, local: bool, ahead: int = 0) -> Group:
    """Workers in their place; if one cannot start, none is left behind."""
    workers: list[Handle] = []
    share: dict[str, Any] = {}
    try:
        if settings.place == "ray":
            from modrl.scheme.places.ray import RayWorker, Share

            asked = {k: v for k, v in _asked(settings, local).items() if v}
            workers = [RayWorker(name, make, asked, list(parts.paths), parts.machine.worker_threads) for name, make in factories.items()]
            share = {"share": Share()}
            for worker in workers:
                worker.wait_started()  # type: ignore[attr-defined]
        else:
            for name, make in factories.items():
                workers.append(HereWorker(name, make) if settings.place == "here" else ThreadWorker(name, make))
    except BaseException:
        for worker in workers:
            worker.close()
        raise
    return Group(workers, method, None if settings.gather == "all" else settings.gather, ahead, settings.max_lag, **share)


# --- presets --------------------------------------------------------------------------------------------------------


@lru_cache
def presets() -> dict[str, Document]:
    """The named schemes that come with modrl."""
    folder = files("modrl.scheme").joinpath("presets")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return {name.removesuffix(".yaml"): read(folder.joinpath(name).read_text("utf-8"), f"preset {name.removesuffix('.yaml')}") for name in names}


def preset_text(name: str) -> str:
    """The file of a preset, comments and all."""
    return files("modrl.scheme").joinpath("presets", f"{name}.yaml").read_text("utf-8")


def expand(document: Document, folder: Path = Path()) -> Document:
    """The scheme's block laid over what its `preset` names: one of modrl's, or a file of the user's, looked for in `folder`.

    Raises:
        ValueError: there is no such preset; names the nearest. ConfigError: the file cannot be read.
    """
    name = document.data.get("preset")
    if isinstance(name, str) and name.endswith((".yaml", ".yml")):
        rest = {key: value for key, value in document.data.items() if key != "preset"}
        document = merge(read_file(folder / name), Document(rest, document.origins))
        name = document.data.get("preset")
    if name is None:
        return document
    if name not in presets():
        meant = nearest(str(name), presets())
        known = f"did you mean {meant!r}?" if meant else f"known are {', '.join(presets())}, or a file of your own, NAME.yaml"
        raise ValueError(f"no scheme is called {name!r}; {known}")
    preset = presets()[str(name)]
    return merge(Document({"preset": name, **preset.data}, preset.origins), document)
