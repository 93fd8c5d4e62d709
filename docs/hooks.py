"""What the site's pages need beyond Markdown, so that the same files read well in the repository: math, and links out of docs/."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BESIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "examples/*.md", "examples/*.py", "examples/*.yaml")
"""What pages link to outside of docs/: it becomes part of the site, at the same place below its root."""
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)]*)?(\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fenced blocks of `math` become MathML, which browsers show by themselves."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    fences.append({"name": "math", "class": "math", "format": _math})
    return config


def _math(source: str, language: str, css_class: str, options: Any, md: Any, **rest: Any) -> str:
    return f'<p class="{css_class}">{convert(source, display="block")}</p>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what lies beside docs/."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links by a file's place in the repository become links by its place in the site."""
    here = Path(str(page.file.abs_src_path)).parent

    def placed(match: re.Match[str]) -> str:
        opening, target, anchor, closing = match.groups()
        path = here / target
        if "://" in target or not path.exists():
            return match[0]
        return f"{opening}{os.path.relpath(_in_site(path), _in_site(here))}{anchor or ''}{closing}"

    return LINK.sub(placed, markdown)


def _in_site(path: Path) -> Path:
    """Where a file of the repository is in the site, below its root."""
    path = path.resolve()
    return Path("/") / path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT)
