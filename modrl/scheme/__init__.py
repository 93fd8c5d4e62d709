"""Schemes: where an agent's workers run, and who waits for whom."""

from modrl.scheme.scheme import Scheme

__all__ = ["Scheme"]
