"""Libraries that are not installed with modrl, but with one of its extras."""

from __future__ import annotations

import importlib

from modrl.config import BadInput


def require_extra(extra: str, what: str, needs: str, *modules: str) -> None:
    """Finds out whether the modules of an extra can be imported.

    Raises:
        BadInput: one cannot; says what needs it, and how to install it.
    """
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        raise BadInput(f"{what} needs {needs}: pip install 'modrl[{extra}]' ({error})") from None
