"""The named schemes: small files inside the package, and files of the user's own."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from modrl.config import Document, merge, nearest, read, read_file


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
    if not isinstance(name, str):
        raise ValueError(f"expected a scheme's name, got {name!r}")
    if name not in presets():
        meant = nearest(name, presets())
        known = f"did you mean {meant!r}?" if meant else f"known are {', '.join(presets())}, or a file of your own, NAME.yaml"
        raise ValueError(f"no scheme is called {name!r}; {known}")
    preset = presets()[name]
    return merge(Document({"preset": name, **preset.data}, preset.origins), document)
