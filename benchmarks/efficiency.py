"""How near modrl comes to the machine's own limit on Pong: `modrl bench` for each network, precision and scheme.

    python benchmarks/efficiency.py [shallow-bf16-overlapped ...]

Five rounds each, all in one sitting; results of cells that are not named are kept. Results go to
benchmarks/results/efficiency_pong.json.
"""

from __future__ import annotations

import json
import sys

from common import EXAMPLES, RESULTS, save

from modrl import Experiment
from modrl.bench import measure

CELLS = [
    ("shallow", "bf16", "overlapped"), ("nature", "bf16", "overlapped"), ("shallow", "fp32", "overlapped"), ("nature", "fp32", "overlapped"),
    ("deep", "bf16", "overlapped"), ("deep", "fp32", "overlapped"), ("shallow", "bf16", "impala"), ("shallow", "bf16", "sebulba"),
]  # fmt: skip


def main() -> None:
    kept = RESULTS / "efficiency_pong.json"
    cells = {tuple(cell["cell"]): cell for cell in json.loads(kept.read_text())["cells"]} if kept.exists() else {}
    for cell in CELLS:
        torso, precision, scheme = cell
        if sys.argv[1:] and "-".join(cell) not in sys.argv[1:]:
            continue
        overrides = [f"scheme={scheme}", f"machine.precision={precision}", f"actor.torso={torso}"]
        result = measure(Experiment.load(EXAMPLES / "pong_impala.yaml", overrides)).to_dict()
        cells[cell] = {"cell": cell, **result}
        print(*cell, f"{result['steps_per_second']:.0f} of {result['roofline']:.0f} steps/s: {result['efficiency']:.3f}", flush=True)
        save("efficiency_pong", {"cells": [cells[known] for known in CELLS if known in cells]})


if __name__ == "__main__":
    main()
