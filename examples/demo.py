"""One agent under three schemes: IMPALA learns CartPole in one process, in two threads, and with its collectors on Ray.

    python examples/demo.py

The settings are those of cartpole_impala.yaml; only `scheme` differs between the runs. It leaves its runs and a picture of
their learning curves under runs/demo/.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from modrl import Experiment
from modrl.display import Display
from modrl.plotting import plot

SCHEMES = {"local": "one process, one thread", "overlapped": "a collector works ahead in a thread", "impala": "two collectors on Ray"}


def main() -> None:
    console = Console()
    folder = Path("runs") / "demo" / time.strftime("%Y%m%d-%H%M%S")
    experiment = Experiment.load(Path(__file__).with_name("cartpole_impala.yaml"))
    table = Table("scheme", "what it is", "return", "steps/s", "policy lag: mean", "max", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for scheme, meaning in SCHEMES.items():
        rows = []
        with Display(console, f"{scheme}: {meaning}", experiment.steps) as display:
            for row in experiment.replace(scheme=scheme).stream(folder / scheme):
                display.show(row)
                rows.append(row)
        first, last = rows[0], rows[-1]
        speed = (last["env_steps"] - first["env_steps"]) / (last["wall_seconds"] - first["wall_seconds"])  # without the start
        lag = sum(row["policy_lag_mean"] for row in rows) / len(rows)
        highest = max(row["policy_lag_max"] for row in rows)
        table.add_row(scheme, meaning, f"{last['episode_return']:.0f}", f"{speed:,.0f}", f"{lag:.2f}", str(highest))
    console.print()
    console.print(table)
    console.print("return: mean of the last 100 episodes, at most 500", "policy lag: rounds between acting and learning", sep="\n")
    picture = plot([folder / scheme for scheme in SCHEMES], folder / "curves.png")
    console.print(f"learning curves: {picture}", soft_wrap=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # a checkpoint was written
        sys.exit(130)
