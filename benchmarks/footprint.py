"""How much memory Pong takes: modrl's A2C in one process and Stable-Baselines3's with the same settings, and one Ray collector of IMPALA's.

    python benchmarks/footprint.py [--sb3 build/peers/sb3/bin/python]

`--sb3`: the interpreter that benchmarks/peers.py has set up. The peak of what is resident of each process, after so many seconds of
training. Results go to benchmarks/results/footprint_pong.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from common import EXAMPLES, HERE, save

QUIET = ["logging.tensorboard=false", "evaluation=null", "steps=1e9"]


def peak(process: psutil.Process) -> float:
    """Megabytes that were resident at most."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


def watched(command: list[str], seconds: float, wanted: Callable[[psutil.Process], bool]) -> list[float]:
    """Runs a command for a while, and gives the peaks of those of its processes that are wanted."""
    with tempfile.TemporaryDirectory() as folder:
        started = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(seconds)
            assert started.poll() is None, f"{command} ended"
            root = psutil.Process(started.pid)
            return [peak(process) for process in (root, *root.children(recursive=True)) if wanted(process)]
        finally:
            started.terminate()
            started.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sb3", default="build/peers/sb3/bin/python")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    modrl = [sys.executable, "-m", "modrl", "train"]
    commands: dict[str, tuple[list[str], Callable[[psutil.Process], bool]]] = {
        "modrl, A2C, local": ([*modrl, str(EXAMPLES / "pong_a2c.yaml"), *QUIET], lambda process: True),
        "Stable-Baselines3, A2C": ([options.sb3, str(HERE / "peers" / "sb3.py"), "pong", "16", "5", "--seconds", "1e6"], lambda process: True),
        "modrl, IMPALA, one of two Ray collectors": (
            [*modrl, str(EXAMPLES / "pong_impala.yaml"), *QUIET], lambda process: process.cmdline()[0].startswith("ray::collector"),
        ),
    }  # fmt: skip
    found: dict[str, float] = {}
    for name, (command, wanted) in commands.items():
        peaks = watched(command, options.seconds, wanted)
        found[name] = max(peaks) if "one of" in name else sum(peaks)
        print(f"{name}: {found[name]:.0f} MB of {len(peaks)} processes", flush=True)
    save("footprint_pong", {"seconds": options.seconds, "peak_mb": found})


if __name__ == "__main__":
    main()
