"""Environments in processes: signals, children of their own, and an end in any case."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from modrl.envs import processes
from modrl.envs.member import EnvError
from modrl.envs.toy import Count
from tests.envs.helpers import episodes, gym_envs, run

pytestmark = pytest.mark.timeout(60)


class Starter(Count):
    """Starts a process and a program of its own, and ends both at its close."""

    def __init__(self):
        super().__init__()
        self.child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        self.child.start()
        self.program = subprocess.Popen(["sleep", "600"])

    def info(self):
        return {"child": self.child.pid, "program": self.program.pid, "own": os.getpid()}

    def close(self):
        self.child.terminate()
        self.child.join()
        self.program.terminate()
        self.program.wait()


class Dying(Count):
    """Its process ends in the second step."""

    def outcome(self, action):
        if self.t == 2:
            os._exit(7)
        return super().outcome(action)


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def await_gone(pids, seconds=20):
    deadline = time.monotonic() + seconds
    while not all(gone(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return all(gone(pid) for pid in pids)


def pids_of(envs):
    return [process.pid for process in envs.vector.processes]


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_a_function_over_a_local_variable_runs_however_processes_start(start_method):
    n = 4
    envs = gym_envs(lambda: Count(n), 1, vectorization="async", start_method=start_method)
    found = episodes(run(envs, 4))
    pids = pids_of(envs)
    envs.close()
    assert [(e.reward, e.length, e.env) for e in found] == [(10.0, 4, 0)]
    assert all(map(gone, pids))


def test_an_env_may_start_processes_of_its_own():
    envs = gym_envs(Starter, 2, vectorization="async", episode_info=["child", "program", "own"])
    pids = [int(pid) for e in episodes(run(envs, 3)) for pid in e.info.values()]
    start = time.monotonic()
    envs.close()
    assert time.monotonic() - start < processes.PATIENCE
    assert len(set(pids)) == 6
    assert await_gone(pids)


def test_signals_that_end_a_run_leave_the_envs_to_the_parent():
    envs = gym_envs(Count, 2, vectorization="async")
    envs.reset()
    for pid in pids_of(envs):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(pid, number)
    assert len(episodes([envs.step([0, 0]) for _ in range(3)])) == 2
    envs.close()
    assert all(process.exitcode == 0 for process in envs.vector.processes)


def test_after_an_error_no_process_is_left():
    envs = gym_envs("modrl/RaiseAt-v0", 2, kwargs={"j": 2}, vectorization="async")
    pids = pids_of(envs)
    with pytest.raises(EnvError, match="boom"):
        run(envs, 3)
    envs.close()
    envs.close()
    assert all(map(gone, pids))


def test_a_process_that_dies_is_named():
    envs = gym_envs(Dying, 1, numbers=[3], vectorization="async")
    with pytest.raises(EnvError, match=r"env 3 \(exit status 7\): its process ended in step"):
        run(envs, 3)
    envs.close()


def test_an_env_that_can_only_be_made_here_is_named():
    home = os.getpid()

    def make():
        if os.getpid() != home:
            os._exit(9)
        return Count()

    with pytest.raises(EnvError, match=r"env 8 \(exit status 9\): its process ended while it was made"):
        gym_envs(make, 1, numbers=[8], vectorization="async")
    assert not multiprocessing.active_children()


def test_a_hanging_env_is_killed_at_the_close(monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    envs = gym_envs("modrl/HangAt-v0", 2, kwargs={"j": 1}, vectorization="async")
    pids = pids_of(envs)
    envs.reset()
    envs.vector.step_async([0, 0])
    envs.close()
    assert all(map(gone, pids))


def test_envs_that_nobody_closed_end_with_their_owner():
    envs = gym_envs(Count, 2, vectorization="async")
    pids = pids_of(envs)
    del envs
    assert await_gone(pids)


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_no_process_outlives_its_parent(ending):
    program = (
        "import os, signal, sys\n"
        "from modrl.envs import Gym\n"
        "envs = Gym.Config(id='modrl/HangAt-v0', count=2, kwargs={'j': 1}, vectorization='async').build(numbers=[0, 1], seeds=[0, 1])\n"
        "envs.reset()\n"
        "print(*[p.pid for p in envs.vector.processes], flush=True)\n"
        f"envs.vector.step_async([0, 0])\n{ending}\n"
    )
    out = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=40, text=True, check=False)
    pids = [int(pid) for pid in out.stdout.split()]
    assert len(pids) == 2
    assert await_gone(pids)


def test_what_the_parent_left_uncollected_does_not_end_a_child():
    class WithThreads:
        """As ale-py's vector env: its threads stay in the parent, and to end it in a forked child aborts."""

        def __init__(self):
            self.itself, self.home = self, os.getpid()

        def __del__(self):
            if os.getpid() != self.home:
                os.abort()

    WithThreads()
    gc.disable()
    try:
        WithThreads()  # garbage that a child's first collection would end
        envs = gym_envs("tests.envs.test_processes:Collecting", 2, vectorization="async", start_method="fork")
    finally:
        gc.enable()
    envs.reset()
    envs.close()


class Collecting(Count):
    """Collects garbage, as any long program does."""

    def reset(self, **options):
        gc.collect()
        return super().reset(**options)
