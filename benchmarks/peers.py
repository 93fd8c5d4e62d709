"""modrl's throughput beside that of other libraries, each in a virtual environment of its own, in turn (A B C A B C ...).

    python benchmarks/peers.py [pong | cartpole] [--only sb3,rllib] [--monobeast CHECKOUT]

Environments are made where they are missing, from peers/NAME.txt, which takes some gigabytes; peers/NAME.py says how each library
is set up. A run's start and its first seconds do not count. A ratio is one of medians; its range is that of the ratios of single
rounds. A library that cannot be installed or run is noted with the last line of what it said, and the others go on. Results go
to benchmarks/results/peers_pong.json and peers_cartpole.json.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import venv
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from common import EXAMPLES, HERE, save

SCRIPTS = HERE / "peers"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.txt"))
START = 180
"""Seconds that a run may take to start and to end."""


class Contender(NamedTuple):
    """A script of peers/ with its arguments, and its name in the tables."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()


class Failure(Exception):
    """A contender did not install or run; says why."""


def ours(name: str, file: str, *overrides: str) -> Contender:
    return Contender(f"modrl, {name}", "ours", (str(EXAMPLES / file), *overrides))


def pong(checkout: Path | None) -> dict[str, list[Contender]]:
    settings = ("scheme=overlapped", "actor.torso=nature", "actor.last_action=false", "actor.last_reward=false")
    contenders = [
        *(ours(f"overlapped, {precision}", "pong_impala.yaml", *settings, f"machine.precision={precision}") for precision in ("bf16", "fp32")),
        Contender("Stable-Baselines3, A2C", "sb3", ("pong", "32", "20")),
        Contender("RLlib, IMPALA", "rllib"),
        Contender("RLlib, IMPALA, tuned", "rllib", ("--tuned",)),
        Contender("Sample Factory, APPO", "samplefactory"),
        Contender("TorchRL, V-trace", "torch_rl"),
    ]
    if checkout:
        contenders.append(Contender("MonoBeast", "monobeast", (str(checkout.resolve()),)))
    return {"32 environments, 20 steps": contenders}


def cartpole() -> dict[str, list[Contender]]:
    """With Stable-Baselines3's default settings, but for 4 epochs and minibatches of 256.

    `local` does what Stable-Baselines3 does, one thing after another; `ahead` collects the next batch in a process of its own
    while the last one is learned from, which is then one round old. `fast` means compiled, and the environment's own vector version.
    """
    ahead = "scheme={collection: {place: ray, workers: 1, ahead: 1}}"
    fast = ("machine.compile=true", "envs.vectorization=vector_entry_point")
    contests = {}
    for count, steps in ((8, 128), (32, 32)):
        settings = (
            f"envs.count={count}", f"storage.batch={count}", f"storage.horizon={steps}", "optimizer.lr=3e-4",
            "algorithm.epochs=4", f"algorithm.minibatches={count * steps // 256}",
        )  # fmt: skip
        contests[f"{count} environments, {steps} steps"] = [
            ours("local", "cartpole_ppo.yaml", "scheme=local", *settings),
            ours("local, fast", "cartpole_ppo.yaml", "scheme=local", *settings, *fast),
            ours("ahead, fast", "cartpole_ppo.yaml", ahead, *settings, *fast),
            Contender("Stable-Baselines3, PPO", "sb3", ("cartpole", str(count), str(steps))),
        ]
    return contests


@functools.cache
def interpreter(script: str, venvs: Path) -> str:
    """The Python that has what a script requires.

    Raises:
        Failure: that cannot be installed.
    """
    if script == "ours":
        return sys.executable
    folder = venvs.resolve() / script
    if not folder.exists():
        venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "-r", str(SCRIPTS / f"{script}.txt")]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"does not install: {last_line(done.stderr)}")
    return python


def measure(contender: Contender, options: argparse.Namespace) -> float:
    """What a contender says of itself, its own agent steps per second. Files and processes that it leaves behind are removed.

    Raises:
        Failure: it says nothing of the kind.
    """
    python, limit = interpreter(contender.script, options.venvs), START + options.warm_up + options.seconds
    command = [python, str(SCRIPTS / f"{contender.script}.py"), *contender.arguments]
    command += ["--seconds", str(options.seconds), "--warm-up", str(options.warm_up)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        said, complained = Path(home, "said"), Path(home, "complained")
        with said.open("w") as out, complained.open("w") as err:
            run = subprocess.Popen(command, cwd=home, env={**os.environ, "HOME": home}, stdout=out, stderr=err, start_new_session=True)
        try:
            status = run.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failure(f"has not ended after {limit:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        if status:
            raise Failure(f"does not run: {last_line(complained.read_text()) or f'status {status}'}")
        line = last_line(said.read_text())
        try:
            return float(line)
        except ValueError:
            raise Failure(f"does not end with its speed: {line}") from None


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def compete(title: str, contenders: list[Contender], options: argparse.Namespace) -> dict:
    """Every run, and why there are no more of some; the medians; and how many times as fast as each peer modrl is."""
    runs: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    failures: dict[str, str] = {}
    for number in range(1, options.rounds + 1):
        for contender in contenders:
            if contender.name in failures:
                continue
            try:
                speed = measure(contender, options)
            except Failure as failure:
                failures[contender.name] = str(failure)
                print(f"{title}, round {number}: {contender.name}: {failure}", flush=True)
            else:
                runs[contender.name].append(speed)
                print(f"{title}, round {number}: {contender.name}: {speed:,.0f} steps/s", flush=True)
    medians = {name: statistics.median(speeds) for name, speeds in runs.items() if speeds}
    mine = [contender.name for contender in contenders if contender.script == "ours" and contender.name in medians]
    ratios = {peer: {name: compare(runs[name], runs[peer]) for name in mine} for peer in medians if peer not in mine}
    return {"runs": runs, "failures": failures, "medians": medians, "ratios": ratios}


def compare(ours: list[float], theirs: list[float]) -> dict[str, float]:
    rounds = [a / b for a, b in zip(ours, theirs, strict=False)]  # one of the two may have failed in a later round
    ratio = statistics.median(ours) / statistics.median(theirs)
    return {"ratio": round(ratio, 2), "low": round(min(rounds), 2), "high": round(max(rounds), 2)}


def show(title: str, result: dict) -> None:
    print(f"\n{title}")
    for name, median in result["medians"].items():
        found = result["ratios"].get(name, {}).items()
        ratios = "".join(f"; {other}: {r['ratio']:.2f} times ({r['low']:.2f} to {r['high']:.2f})" for other, r in found)
        print(f"  {name:24} {median:>8,.0f} steps/s{ratios}")
    for name, why in result["failures"].items():
        print(f"  {name:24} {why}")
    print(flush=True)


def requirements(script: str) -> dict[str, str]:
    """The versions of a script's packages."""
    return dict(line.split("==") for line in (SCRIPTS / f"{script}.txt").read_text().splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game", nargs="?", choices=["pong", "cartpole"], help="both unless said")
    parser.add_argument("--only", type=lambda text: text.split(","), default=NAMES, help=f"of {','.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40, help="of each run that count")
    parser.add_argument("--warm-up", type=float, default=10, help="seconds before them")
    parser.add_argument("--venvs", type=Path, default=HERE.parent / "build" / "peers", help="where the libraries' environments are")
    parser.add_argument("--monobeast", type=Path, help="a checkout of TorchBeast")
    options = parser.parse_args()
    if unknown := set(options.only) - set(NAMES):
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    for game, contests in {"pong": pong(options.monobeast), "cartpole": cartpole()}.items():
        if options.game not in (None, game):
            continue
        chosen = {title: [c for c in contenders if c.script in ("ours", *options.only)] for title, contenders in contests.items()}
        scripts = sorted({contender.script for contenders in chosen.values() for contender in contenders} - {"ours"})
        for script in scripts:  # before the first run, so that rounds are not torn apart
            with suppress(Failure):
                interpreter(script, options.venvs)
        results = {}
        for title, contenders in chosen.items():
            results[title] = compete(f"{game}, {title}", contenders, options)
            show(f"{game}, {title}", results[title])
        about = {"rounds": options.rounds, "seconds": options.seconds, "peers": {script: requirements(script) for script in scripts}}
        save(f"peers_{game}", {**about, "contests": results})


if __name__ == "__main__":
    main()
