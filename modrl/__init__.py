"""modrl: modular reinforcement learning in PyTorch. One agent, any distributed scheme."""

from modrl.experiment import Experiment, Result
from modrl.policy import Policy, load

__all__ = ["Experiment", "Policy", "Result", "load"]
__version__ = "0.1.0"
