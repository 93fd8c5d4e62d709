"""modrl itself: an experiment's file with overrides."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pace import Pace, parser

from modrl import Experiment


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("file")
    arguments.add_argument("overrides", nargs="*")
    options = arguments.parse_args()
    pace = Pace(options)
    endless = ["steps=1e12", "evaluation=null", "logging.tensorboard=false"]
    experiment = Experiment.load(options.file, [*endless, *options.overrides])
    with tempfile.TemporaryDirectory() as folder, experiment.stream(Path(folder) / "run") as rows:
        for row in rows:
            if pace.report(row["env_steps"]):
                break
    pace.say()


if __name__ == "__main__":
    main()
