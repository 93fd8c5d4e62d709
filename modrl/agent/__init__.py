"""The agent: what acts (actors), what learns (algorithms), where experience waits (storages), and what steps (optimizers)."""

from modrl.agent import actors, algorithms, optimizers, storages

__all__ = ["actors", "algorithms", "optimizers", "storages"]
