"""What the benchmarks share: where results go, and what they say of the machine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
RESULTS = HERE / "results"
PACKAGES = ("torch", "numpy", "gymnasium", "ale-py", "ray")


def processor() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def about() -> dict[str, Any]:
    """The machine, the versions and the date."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"cpus": os.cpu_count(), "processor": processor(), "python": platform.python_version()},
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
    }


def save(name: str, result: dict[str, Any]) -> Path:
    """Writes a result with the machine, the versions and the date."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**about(), **result}, indent=1) + "\n")
    return path
