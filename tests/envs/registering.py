"""Importing this registers an id and offers a function that makes an env."""

import gymnasium

from modrl.envs.toy import Count

gymnasium.register("Imported-v0", Count)


def make(n=3):
    return Count(n)


NOT_CALLABLE = 3
