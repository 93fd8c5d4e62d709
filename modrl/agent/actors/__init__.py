"""Actors: what acts, from torso to action."""

from modrl.agent.actors.actor_critic import ActorCritic
from modrl.agent.actors.auto import Auto
from modrl.agent.actors.base import Actor, Distribution, Inference, Memory, Output, Step
from modrl.agent.actors.images import ImageTorso, Nature, Shallow
from modrl.agent.actors.memory import GRU, LSTM, Recurrent
from modrl.agent.actors.resnet import Deep
from modrl.agent.actors.torsos import MLP, Embedding, Identity, Torso

__all__ = [
    "GRU", "LSTM", "MLP", "Actor", "ActorCritic", "Auto", "Deep", "Distribution", "Embedding", "Identity", "ImageTorso", "Inference",
    "Memory", "Nature", "Output", "Recurrent", "Shallow", "Step", "Torso",
]  # fmt: skip
