"""Workers as Ray actors: processes on this machine or a cluster. The one module that imports ray.

Weights are put into the object store once per version; rollouts come back as read-only numpy arrays, without a copy on
the same machine. A cluster that this process started listens on loopback alone, without a dashboard, and ends with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import re
import signal
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, cast

# Without it Ray resolves 127.0.0.1 to this machine's outer address on Linux, and listens there.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # as every other place: where cores are busy, collectors of niceness 15 starve
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a worker without GPUs keeps CUDA_VISIBLE_DEVICES

import numpy as np
import ray
import torch
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from modrl.agent.actors.base import Memory
from modrl.config import BadInput
from modrl.messages import Tree, Weights
from modrl.rundir import version as modrl_version
from modrl.scheme.group import STARTING_SECONDS
from modrl.scheme.inference import Answer
from modrl.scheme.places.base import Factory, PeerLost, WorkerError, WorkerLost
from modrl.scheme.race import KEPT, Round
from modrl.tree import to_numpy

CODE_BYTES = 50_000_000
"""The user's own code that is sent to a cluster's workers is no more than that."""
ASKING_SECONDS = 0.02
"""How often a collector asks how many others are done: each question costs all of them a millisecond or so of one core."""
CONNECTING_SECONDS = 5.0
"""How long a cluster's head may take to answer."""
CLOSING_SECONDS = 5.0
"""How long a worker may take to close its environments before its process is ended."""


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Who listens to SIGTERM goes on listening: ray.init would put in place a handler that ends the process, in mid-start too."""
    handler, set_handler = signal.getsignal(signal.SIGTERM), ray._private.utils.set_sigterm_handler
    ray._private.utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        ray._private.utils.set_sigterm_handler = set_handler
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # from Ray's native code, which has one of its own


@contextlib.contextmanager
def _deaf_to_warnings() -> Iterator[None]:
    """Processes that are started meanwhile do not hear SIGUSR1, which a queue sends to all of a job: Ray's own would die of it at once."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_address(address: str) -> None:
    """Refuses at once where nothing answers: Ray itself would try for minutes, deaf to signals.

    Raises:
        BadInput: the address is none, or nothing listens there.
    """
    if address in ("local", "auto"):
        return
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit()) or "/" in host:
        raise BadInput(f"machine.ray.address: expected local, auto or HOST:PORT of a cluster's head, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECTING_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise BadInput(f"machine.ray.address: no Ray cluster answers at {address}: {error}") from None


class Cluster:
    """The Ray cluster that this process uses; shut down at the end if it was started here."""

    def __init__(self, address: str, object_store: int | None) -> None:
        self.started = not ray.is_initialized()
        self.local = address == "local"
        if not self.started:
            return
        check_address(address)
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": True, "include_dashboard": False}
        if self.local:
            options |= {"address": "local", "_node_ip_address": "127.0.0.1", "object_store_memory": object_store}
        else:
            options["address"] = address
        with contextlib.suppress(KeyError):
            del os.environ["RAY_ADDRESS"]  # the experiment's file decides
        try:
            with _sigterm_kept(), _deaf_to_warnings():
                ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BadInput(
                f"machine.ray.address: cannot connect to the Ray cluster at {address!r}: {error} "
                "(where it asks for a token, RAY_AUTH_MODE=token has to be set here too)"
            ) from error

    def share_code(self, folders: Sequence[str]) -> Any:
        """What a cluster's workers need of the user's own code, put into the object store once; None: they see this machine's files."""
        return None if self.local or not folders else ray.put(code_of(folders))

    def require(self, wanted: dict[str, float]) -> None:
        """Refuses at once what the cluster does not have.

        Raises:
            BadInput: names the resource, what is asked for, and what is there.
        """
        there, free = ray.cluster_resources(), ray.available_resources()
        for resource, amount in wanted.items():
            if amount > there.get(resource, 0.0) + 1e-6:
                raise BadInput(
                    f"the scheme asks for {amount:g} {resource} over all its Ray workers, but the cluster has {there.get(resource, 0.0):g}; "
                    "use fewer workers or set their resources"
                )
            if amount > free.get(resource, 0.0) + 1e-6:
                raise BadInput(
                    f"the scheme asks for {amount:g} {resource} over all its Ray workers, but only {free.get(resource, 0.0):g} of "
                    f"{there[resource]:g} are free; wait for other jobs to end or use fewer workers"
                )

    def close(self) -> None:
        """Leaves the cluster as it was found."""
        if self.started:
            ray.shutdown()


def _process_class(name: str) -> Any:
    """The class of the actor that Ray starts in a process of its own, which is called as the worker is.

    It travels by value, for it is no module's: the process imports modrl only when it knows where this process has it from.
    Ray itself puts the working directory first, in which there may be another one.
    """
    home, version = str(Path(__file__).parents[3]), modrl_version("modrl")

    class Process:
        def __init__(self, name: str, paths: list[str], threads: int, compression: str | None, code: dict[str, bytes] | None) -> None:
            import hashlib
            import os
            import shutil
            import sys
            import tempfile

            given = [*paths, *(path for path in sys.path if path not in paths)]
            if code is not None:  # another machine may have none of the driver's folders, or older files in them
                folder = os.path.join(tempfile.gettempdir(), f"modrl-code-{hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()[:16]}")
                aside = tempfile.mkdtemp()
                for file, content in code.items():
                    os.makedirs(os.path.dirname(os.path.join(aside, file)), exist_ok=True)
                    with open(os.path.join(aside, file), "wb") as written:
                        written.write(content)
                try:
                    os.rename(aside, folder)
                except OSError:  # another worker was here first
                    shutil.rmtree(aside)
                given = [*(os.path.join(folder, part) for part in sorted(os.listdir(folder))), *given]
            sys.path[:] = [home, *given]
            self.remote: Any = None
            self.failure = ""  # why there is none
            try:
                from modrl.rundir import version as installed
                from modrl.scheme.places.ray import Remote
            except ImportError as error:
                self.failure = f"cannot import modrl on {os.uname().nodename}: {error}; install modrl {version} there"
                return
            if installed("modrl") != version:
                self.failure = f"modrl {installed('modrl')} is installed on {os.uname().nodename}, but the driver has {version}; install that there"
                return
            sys.path[:] = given
            self.remote = Remote(name, threads, compression)

        def start(self, payload: bytes) -> Any:
            return self.failure or self.remote.start(payload)

        def call(self, method: str, *arguments: Any) -> Any:
            if self.failure:
                raise RuntimeError(self.failure)
            return self.remote.call(method, *arguments)

        def address(self) -> str:
            import ray

            return ray.util.get_node_ip_address()

    Process.__name__ = Process.__qualname__ = re.sub(r"\W+", "_", name)
    return Process


def code_of(folders: Sequence[str]) -> dict[str, bytes]:
    """The Python files in folders that the user's own components are imported from, by number of the folder and relative path.

    Raises:
        BadInput: they are more than anyone writes by hand.
    """
    code: dict[str, bytes] = {}
    for number, folder in enumerate(folders):
        for path in sorted(Path(folder).rglob("*.py")):
            relative = path.relative_to(folder)
            if not any(part.startswith((".", "__pycache__")) or part in {"site-packages", "node_modules"} for part in relative.parts):
                code[f"{number:03}/{relative}"] = path.read_bytes()
    if (size := sum(map(len, code.values()))) > CODE_BYTES:
        raise BadInput(
            f"the Python files in {', '.join(folders)} are {size / 1e6:.0f} MB, too much to send to a cluster's workers: "
            "put your components into a folder of their own, or install them on every node"
        )
    return code


class Remote:
    """The process side of a worker: makes it, and runs its methods."""

    def __init__(self, name: str, threads: int, compression: str | None) -> None:
        torch.set_num_threads(threads)
        self.name = name
        self.compression = compression
        self.worker: Any = None
        self.started = threading.Event()
        self.failure: WorkerError | None = None  # why there is no worker

    def start(self, payload: bytes) -> Any:
        self.failure = self._run(lambda: setattr(self, "worker", self._load(payload)()))
        self.started.set()
        return self.failure

    def _load(self, payload: bytes) -> Any:
        try:
            return cloudpickle.loads(payload)
        except ImportError as error:
            raise WorkerError(
                self.name,
                f"cannot import the experiment's code on {os.uname().nodename}: {error}; what is imported from the folders of its components "
                "is sent along, anything else has to be installed there",
            ) from error

    def call(self, method: str, *arguments: Any) -> Any:
        self.started.wait()  # a worker that takes several calls at once may take one before it exists
        if self.failure is not None:
            return self.failure
        result = self._run(lambda: to_numpy(getattr(self.worker, method)(*arguments)))
        return result if self.compression is None or isinstance(result, WorkerError) else pack(result)

    def _run(self, function: Any) -> Any:
        try:
            return function()
        except WorkerError as error:
            return error
        except Exception as error:  # to be raised in the caller: the original may not survive pickling
            return WorkerError(self.name, traceback.format_exc(), to_numpy(getattr(error, "dump", None)))


class Packed(NamedTuple):
    """A compressed result."""

    data: bytes
    size: int  # bytes before


def pack(result: Any) -> Packed:
    """Any result, pickled and compressed with LZ4."""
    import lz4.frame

    raw = pickle.dumps(result, protocol=5)
    return Packed(lz4.frame.compress(raw), len(raw))


def unpack(packed: Packed) -> Any:
    """What was packed; its arrays can be written to."""
    import lz4.frame

    return pickle.loads(lz4.frame.decompress(packed.data))


class Options(NamedTuple):
    """What the workers of a group have in common."""

    resources: dict[str, float] = {}
    paths: tuple[str, ...] = ()  # folders to import from
    threads: int = 1  # of torch
    concurrency: int = 1  # calls that a worker takes at once
    placement: str | None = None  # spread: over the nodes
    compression: str | None = None
    code: Any = None  # the user's own Python files, in the object store; None: workers find them where the driver does


class RayWorker:
    """A worker in a Ray actor."""

    def __init__(self, name: str, factory: Factory, options: Options) -> None:
        self.name = name
        self.counts = Counter[str]()
        resources = options.resources
        asked = {
            "num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0),
            "resources": {key: value for key, value in resources.items() if key not in {"CPU", "GPU"}},
            "max_concurrency": options.concurrency, "scheduling_strategy": "SPREAD" if options.placement == "spread" else "DEFAULT",
        }  # fmt: skip
        process = ray.remote(_process_class(name)).options(**asked)
        self.actor = cast(Any, process.remote(name, list(options.paths), options.threads, options.compression, options.code))
        self._started = self.actor.start.remote(cloudpickle.dumps(factory))

    def wait_started(self) -> None:
        """Until the worker exists.

        Raises:
            WorkerError: it could not be made.
        """
        try:
            answer = ray.get(self._started, timeout=STARTING_SECONDS)
        except GetTimeoutError:
            raise WorkerError(
                self.name, f"did not start within {STARTING_SECONDS:g} s: no free place in the cluster, or a hanging environment"
            ) from None
        except RayError as error:
            raise WorkerError(self.name, _died(error)) from error
        if isinstance(answer, str):
            raise WorkerError(self.name, answer)
        if isinstance(answer, WorkerError):
            raise answer

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        """Queues a task; its numpy results are read-only."""
        return self._future(self.actor.call.remote(method, *arguments))

    def address(self) -> Future[str]:
        """Where other machines reach the worker's."""
        return self._future(self.actor.address.remote())

    def _future(self, reference: Any) -> Future[Any]:
        future: Future[Any] = Future()
        reference.future().add_done_callback(lambda done: self._pass_on(done, future))
        return future

    def _pass_on(self, done: Future[Any], future: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            result = done.result()
        elif isinstance(error, RayTaskError):
            result = WorkerError(self.name, str(error))
        else:
            result = WorkerLost(self.name, _died(error))
        if isinstance(result, Packed):
            self.counts["transport/bytes_sent"] += len(result.data)
            self.counts["transport/bytes_saved"] += result.size - len(result.data)
            result = unpack(result)
        if isinstance(result, WorkerError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def close(self) -> None:
        """Closes the worker, then ends its process."""
        with contextlib.suppress(RayError):
            ray.get(self.actor.call.remote("close"), timeout=CLOSING_SECONDS)
        self.discard()

    def discard(self) -> None:
        """Ends its process."""
        with contextlib.suppress(RayError):
            ray.kill(self.actor)


def _died(error: BaseException) -> str:
    return f"its process died: {error}" if isinstance(error, RayActorError) else f"{type(error).__name__}: {error}"


class Share:
    """Puts a version of the weights into the object store once, however many workers get it."""

    def __init__(self) -> None:
        self._version = -1
        self._references: dict[tuple[Any, ...], Any] = {}  # of this version, by the parts that are in it

    def __call__(self, weights: Weights) -> Any:
        """What to hand to workers in place of the weights."""
        if weights.version != self._version:
            self._version, self._references = weights.version, {}
        parts = (bool(weights.acting), *weights.learning)
        if parts not in self._references:
            self._references[parts] = ray.put(to_numpy(weights))
        return self._references[parts]


class RayClient:
    """A collector's way to a server that is a Ray actor."""

    def __init__(self, worker: RayWorker) -> None:
        self.name = worker.name
        self.actor = worker.actor

    def infer(self, obs: Tree, first: np.ndarray, memory: Memory, then: Callable[[Answer], Any]) -> Any:
        """`then` of the server's answer, computed here.

        Raises:
            PeerLost: the server is gone.
        """
        try:
            answer = ray.get(self.actor.call.remote("infer", obs, first, memory))
        except RayTaskError:
            raise
        except RayError as error:
            raise PeerLost(self.name, _died(error)) from error
        if isinstance(answer, WorkerError):
            raise answer
        return then(answer)


class _BoardActor:
    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.counts: dict[Any, int] = {}

    def finish(self, round: Any) -> None:
        self.counts[round] = self.counts.get(round, 0) + 1
        while len(self.counts) > self.kept:
            del self.counts[min(self.counts)]

    def finished(self, round: Any) -> int:
        return self.counts.get(round, 0)


class RayBoard:
    """A board for collectors in processes: an actor, which each asks every so often, and goes on while it waits for the answer.

    It lives on the driver's machine. If it is lost, another begins empty: the round under way is not cut short.
    """

    def __init__(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        self.actor = cast(Any, ray.remote(_BoardActor).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote(KEPT))
        self._forget((-1, 0))

    def _forget(self, round: Round) -> None:
        self._round, self._known = round, 0
        self._question: Any = None  # that is open
        self._asked = time.monotonic()

    def __reduce__(self) -> Any:
        return _board_of, (self.actor,)

    def finish(self, round: Round) -> None:
        """One more is done with this round."""
        self.actor.finish.remote(round)

    def finished(self, round: Round) -> int:
        """How many are, by the newest answer."""
        if round != self._round:
            self._forget(round)
        if self._question is not None and ray.wait([self._question], timeout=0)[0]:
            question, self._question = self._question, None
            with contextlib.suppress(RayError):
                self._known = ray.get(question)
        if self._question is None and time.monotonic() - self._asked >= ASKING_SECONDS:
            self._question, self._asked = self.actor.finished.remote(round), time.monotonic()
        return self._known

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self.actor)


def _board_of(actor: Any) -> RayBoard:
    board = RayBoard.__new__(RayBoard)
    board.actor = actor
    board._forget((-1, 0))
    return board
