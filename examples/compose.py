"""One agent composed in Python, run under four schemes: what differs between the runs is the scheme and nothing else.

python examples/compose.py [steps]
"""

import sys

from modrl import Experiment
from modrl.agent.actors import MLP, ActorCritic
from modrl.agent.algorithms import IMPALA
from modrl.agent.optimizers import Adam, Linear
from modrl.agent.storages import Fresh
from modrl.envs import Gym

SCHEMES = ["local", "overlapped", "sebulba", "impala"]


def experiment(steps: int = 100_000) -> Experiment:
    """The agent of cartpole_impala.yaml."""
    return Experiment(
        name="compose",
        steps=steps,
        envs=Gym.Config(id="CartPole-v1", count=8),
        actor=ActorCritic.Config(torso=MLP.Config(hidden=[128, 128]), value="separate", init="orthogonal"),
        algorithm=IMPALA.Config(discount=0.995, entropy_cost=0.1, reduction="mean", reward="none"),
        optimizer=Adam.Config(lr=Linear(1.5e-3, 0), max_grad_norm=0.5),
        storage=Fresh.Config(horizon=32, batch=8),
    )


if __name__ == "__main__":
    agent = experiment(int(float(sys.argv[1])) if len(sys.argv) > 1 else 100_000)
    for scheme in SCHEMES:
        result = agent.replace(scheme=scheme).run()
        row = result.metrics
        print(f"{scheme:<12} return {row['episode_return'] or float('nan'):6.1f}  lag {row['policy_lag_max'] or 0:.0f}  {result.run_dir}")
