"""Algorithms: what learns."""
