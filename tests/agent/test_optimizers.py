"""Optimisers against hand calculation, torch's own, and their saved state."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
import torch

from modrl import config
from modrl.agent.optimizers import Adam, Constant, Cosine, Linear, Optimizer, Piecewise, RMSProp
from modrl.config import ConfigError, Document, Settings


class File(Settings):
    optimizer: Optimizer.Config


def from_file(**block):
    return config.validate(File, Document({"optimizer": block}, {}), "a file").optimizer


def weight(*values):
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


def gradient(*values):
    return [torch.tensor(values, dtype=torch.float64)]


def test_the_learning_rate_follows_progress_and_stops_at_its_end():
    parameter = weight(1.0)
    optimizer = RMSProp.Config(lr=Linear(6e-4, 0)).build(parameters=[parameter])
    rates = [optimizer.step(gradient(1.0), progress)["learning_rate"] for progress in (0.0, 0.25, 1.0, 1.2)]
    assert rates == pytest.approx([6e-4, 4.5e-4, 0.0, 0.0])
    before = parameter.item()
    optimizer.step(gradient(1.0), 1.2)
    assert parameter.item() == before < 1.0  # the rule was told


@pytest.mark.parametrize("schedule", [Constant(1e-3), Linear(1e-3, 0), Cosine(1e-3, 1e-4), Piecewise([0, 1e-3], [0.5, 1e-4])])
def test_a_schedule_survives_a_file(schedule):
    settings = Adam.Config(lr=schedule)
    assert from_file(**config.dump(settings)) == settings


def test_rmsprop_by_hand_and_across_a_restart():
    settings = RMSProp.Config(lr=0.1, alpha=0.99, eps=0.01)
    first = weight(1.0)
    before = settings.build(parameters=[first])
    before.step(gradient(1.0), 0.0)
    assert first.item() == pytest.approx(0.090909, abs=1e-6)
    second = weight(first.item())
    after = settings.build(parameters=[second])
    after.restore(before.state())
    after.step(gradient(1.0), 0.0)
    assert second.item() == pytest.approx(-0.571047, abs=1e-6)  # -0.818182 without the memory


def test_eps_inside_the_root_is_tensorflows():
    outside, inside = weight(1.0), weight(1.0)
    RMSProp.Config(lr=0.1, eps=0.01).build(parameters=[outside]).step(gradient(0.5), 0.0)
    RMSProp.Config(lr=0.1, eps=0.01, eps_inside=True).build(parameters=[inside]).step(gradient(0.5), 0.0)
    assert outside.item() == pytest.approx(1 - 0.1 * 0.5 / (0.0025**0.5 + 0.01))
    assert inside.item() == pytest.approx(1 - 0.1 * 0.5 / (0.0025 + 0.01) ** 0.5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_is_torchs(momentum, centered):
    ours, theirs = weight(1.0, -2.0, 3.0), weight(1.0, -2.0, 3.0)
    options = {"lr": 0.05, "alpha": 0.9, "eps": 0.01, "momentum": momentum, "centered": centered}
    optimizer = RMSProp.Config(**options).build(parameters=[ours])
    reference = torch.optim.RMSprop([theirs], **options)
    for i in range(20):
        theirs.grad = torch.sin(torch.arange(3, dtype=torch.float64) + i)
        optimizer.step([theirs.grad], 0.0)
        reference.step()
    torch.testing.assert_close(ours, theirs)


def test_adam_is_torchs():
    ours, theirs = weight(1.0, -2.0), weight(1.0, -2.0)
    optimizer = Adam.Config(lr=0.05, betas=(0.8, 0.9), eps=1e-5).build(parameters=[ours])
    reference = torch.optim.Adam([theirs], lr=0.05, betas=(0.8, 0.9), eps=1e-5)
    for i in range(20):
        theirs.grad = torch.sin(torch.arange(2, dtype=torch.float64) + i)
        optimizer.step([theirs.grad], 0.0)
        reference.step()
    torch.testing.assert_close(ours, theirs)


def test_weight_decay_shrinks_weights_apart_from_the_gradient():
    parameter = weight(2.0)
    Adam.Config(lr=0.1, weight_decay=0.5).build(parameters=[parameter]).step(gradient(0.0), 0.0)
    assert parameter.item() == pytest.approx(2.0 * (1 - 0.1 * 0.5))


def plain_descent(**options):
    return from_file(name="torch.optim:SGD", lr=1.0, **options)


def test_the_combined_gradient_is_clipped_once_by_its_global_norm():
    first, second = weight(0.0), weight(0.0)
    optimizer = plain_descent(max_grad_norm=1.0).build(parameters=[first, second])
    gradients = [*gradient(3.0), *gradient(4.0)]
    said = optimizer.step(gradients, 0.0)
    assert (-first.item(), -second.item()) == pytest.approx((0.6, 0.8))
    assert said["grad_norm"] == pytest.approx(5.0)  # before clipping
    assert [g.item() for g in gradients] == [3.0, 4.0]  # the caller's are left alone
    optimizer.step([*gradient(0.3), *gradient(0.4)], 0.0)
    assert (-first.item(), -second.item()) == pytest.approx((0.9, 1.2))  # a small one is left as it is


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("limit", [None, 1.0])
def test_a_gradient_that_is_not_finite_stops_before_it_is_applied(bad, limit):
    first, second = weight(1.0), weight(2.0, 3.0)
    optimizer = RMSProp.Config(max_grad_norm=limit).build(parameters=[first, second])
    with pytest.raises(FloatingPointError, match=r"not finite: in 1 of 2 tensors, the first of shape \[2\]"):
        optimizer.step([*gradient(1.0), *gradient(1.0, bad)], 0.0)
    assert first.item() == 1.0
    assert second.tolist() == [2.0, 3.0]
    assert optimizer.state() == [{}, {}]


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "rmsprop", "lr": 0.01, "momentum": 0.9, "centered": True},
        {"name": "rmsprop", "lr": 0.01, "eps_inside": True},
        {"name": "adam", "lr": 0.01, "amsgrad": True},
        {"name": "torch.optim:NAdam", "lr": 0.01},
        {"name": "torch.optim:SGD", "lr": 0.01, "momentum": 0.9},
    ],
)
def test_a_restart_continues_exactly(settings):
    def updates(optimizer, start, stop):
        for i in range(start, stop):
            optimizer.step([torch.sin(torch.arange(3.0) + i), torch.cos(torch.arange(2.0) + i)], 0.0)

    def parameters():
        return [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]

    straight = parameters()
    updates(from_file(**settings).build(parameters=straight), 0, 20)
    resumed = parameters()
    before = from_file(**settings).build(parameters=resumed)
    updates(before, 0, 10)
    state = before.state()
    saved = copy.deepcopy(state)
    updates(before, 10, 13)  # the state is a copy
    assert all(torch.equal(torch.as_tensor(a[key]), torch.as_tensor(b[key])) for a, b in zip(state, saved, strict=True) for key in a)
    resumed = parameters()
    updates(from_file(**settings).build(parameters=resumed), 0, 10)  # weights as they were at 10
    after = from_file(**settings).build(parameters=resumed)
    after.restore(saved)
    updates(after, 10, 20)
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))
    assert all(isinstance(value, (torch.Tensor, int, float)) for entry in saved for value in entry.values())


def test_new_settings_win_over_a_saved_state():
    parameter = weight(1.0)
    before = RMSProp.Config(lr=0.1, max_grad_norm=1.0).build(parameters=[parameter])
    before.step(gradient(1.0), 0.0)
    after = RMSProp.Config(lr=0.2).build(parameters=[parameter])
    after.restore(before.state())
    assert after.step(gradient(1.0), 0.0)["learning_rate"] == 0.2


def test_the_state_of_another_network_is_refused():
    state = RMSProp.Config().build(parameters=[weight(1.0)]).state()
    with pytest.raises(ValueError, match="steps 1 parameters, this one 2"):
        RMSProp.Config().build(parameters=[weight(1.0), weight(1.0)]).restore(state)


# --- torch's by path ------------------------------------------------------------------------------------------------


def test_torchs_optimizers_go_by_path():
    settings = from_file(name="torch.optim:AdamW", lr={"linear": [1e-3, 0]}, weight_decay=0.1, betas=[0.8, 0.9], max_grad_norm=1)
    optimizer = settings.build(parameters=[weight(1.0)])
    assert type(optimizer.rule) is torch.optim.AdamW
    assert optimizer.rule.param_groups[0]["weight_decay"] == 0.1
    assert optimizer.rule.param_groups[0]["betas"] == (0.8, 0.9)
    assert optimizer.step(gradient(1.0), 0.5)["learning_rate"] == pytest.approx(5e-4)


def test_torchs_optimizers_survive_a_file_and_a_process():
    settings = from_file(name="torch.optim:AdamW", lr={"linear": [1e-3, 0]}, weight_decay=0.1)
    data = config.dump(settings)
    assert (data["name"], data["lr"], data["weight_decay"]) == ("torch.optim:AdamW", {"linear": [1e-3, 0.0]}, 0.1)
    assert from_file(**config.parse(config.to_yaml(data))) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings != from_file(name="torch.optim:AdamW", lr={"linear": [1e-3, 0]})


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"name": "torch.optim:AdamW", "weight_decy": 0.1}, "optimizer.weight_decy: unknown key; did you mean 'weight_decay'?"),
        ({"name": "torch.optim:AdamW", "weight_decay": -1.0}, "optimizer: Invalid weight_decay value: -1.0"),
        ({"name": "torch.optim:AdamW", "weight_decay": "x"}, "optimizer.weight_decay: expected a number, got 'x' (str)"),
        ({"name": "torch.optim:Adamw"}, "optimizer.name: module 'torch.optim' has no 'Adamw'; did you mean 'Adam'?"),
        ({"name": "torch.optim:LBFGS"}, "optimizer: 'torch.optim:LBFGS' cannot be used: it evaluates the loss several times per step"),
        ({"name": "torch.optim:SparseAdam", "lr": 0.1}, "optimizer: SparseAdam does not support dense gradients"),
        ({"name": "adam", "eps": 0}, "optimizer.eps: must be above 0, got 0"),
        ({"name": "torch.nn:Linear"}, "optimizer: 'torch.nn:Linear' is no optimizer: expected a subclass of torch.optim.Optimizer"),
        ({"name": "rmsprp"}, "optimizer.name: no optimizer is called 'rmsprp'; did you mean 'rmsprop'?"),
        ({"name": "rmsprop", "lr": -1.0}, "optimizer.lr: must be greater than or equal to 0, got -1.0"),
        ({"name": "rmsprop", "lr": {"linear": [1.0, -1.0]}}, "optimizer.lr: must be greater than or equal to 0, got -1.0"),
        ({"name": "rmsprop", "max_grad_norm": 0}, "optimizer.max_grad_norm: must be above 0, got 0"),
        ({"name": "rmsprop", "alpha": 1}, "optimizer.alpha: must be below 1, got 1"),
        ({"name": "adam", "learning_rate": 1e-3}, "optimizer.learning_rate: unknown key; did you mean 'lr'?"),
    ],
)
def test_bad_settings_are_told(block, message):
    with pytest.raises(ConfigError) as caught:
        from_file(**block)
    assert message in str(caught.value)


# --- blocks of parameters -------------------------------------------------------------------------------------------

ELEMENTWISE = [RMSProp.Config(lr=0.1, momentum=0.9, centered=True), Adam.Config(lr=0.1, amsgrad=True)]


def steps_of(optimizer, count, start=0):
    for i in range(start, start + count):
        optimizer.step([torch.sin(torch.arange(p.numel(), dtype=p.dtype).view_as(p) + i) for p in optimizer.parameters], 0.0)


@pytest.mark.parametrize("settings", ELEMENTWISE)
def test_parameters_side_by_side_step_as_each_by_itself(settings):
    shapes, kinds = [(2, 3), (), (4,), (0,)], [torch.float64, torch.float32, torch.float64, torch.float64]
    together = [torch.nn.Parameter(torch.ones(shape, dtype=kind)) for shape, kind in zip(shapes, kinds, strict=True)]
    alone = [torch.nn.Parameter(parameter.detach().clone()) for parameter in together]
    steps_of(settings.build(parameters=together), 5)
    for parameter in alone:
        steps_of(settings.build(parameters=[parameter]), 5)
    for one, other, shape in zip(together, alone, shapes, strict=True):
        assert one.shape == shape
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("settings", ELEMENTWISE)
def test_a_parameter_is_stepped_where_it_lies(settings):
    """In memory of its own or of another parameter's, put elsewhere between two steps, or transposed."""
    shared = torch.ones(2, 3, dtype=torch.float64)
    made = [torch.nn.Parameter(shared), torch.nn.Parameter(shared), torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64))]
    reference = [weight(*[1.0] * 6), weight(*[1.0] * 4)]
    optimizer, alone = settings.build(parameters=made), settings.build(parameters=reference)

    def step(i):
        first, second = (torch.sin(torch.arange(n, dtype=torch.float64) + i) for n in (6, 4))
        optimizer.step([first.view(2, 3), torch.zeros(2, 3, dtype=torch.float64), second.view(2, 2)], 0.0)
        alone.step([first, second], 0.0)
        torch.testing.assert_close(made[0].flatten(), reference[0], rtol=0, atol=0)
        assert made[1].data_ptr() == made[0].data_ptr() == shared.data_ptr()
        torch.testing.assert_close(made[2].flatten(), reference[1], rtol=0, atol=0)

    step(0)
    made[2].data = made[2].data.clone()
    step(1)
    made[2].data = made[2].data.t().contiguous().t()
    assert not made[2].is_contiguous()
    step(2)


@pytest.mark.parametrize("block", [{"name": "rmsprop", "lr": 0.1}, {"name": "torch.optim:SGD", "lr": 0.1}])
def test_gradients_summed_over_samples_are_averaged_before_they_are_clipped(block):
    ours, theirs, bare = weight(1.0, -2.0), weight(1.0, -2.0), weight(1.0, -2.0)
    summed = from_file(max_grad_norm=1.0, **block).build(parameters=[ours]).step(gradient(12.0, 16.0), 0.0, samples=4)
    assert summed["grad_norm"] == pytest.approx(5.0)
    from_file(**block).build(parameters=[theirs]).step(gradient(0.6, 0.8), 0.0)
    torch.testing.assert_close(ours, theirs)
    from_file(**block).build(parameters=[bare]).step(gradient(2.4, 3.2), 0.0, samples=4)
    torch.testing.assert_close(bare, theirs)


def test_what_torchs_rules_remembered_is_taken_over():
    theirs = weight(1.0, -2.0)
    reference = torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.0, fused=True)
    for i in range(6):
        if i == 3:
            ours = weight(*theirs.tolist())
            optimizer = Adam.Config(lr=0.1).build(parameters=[ours])
            optimizer.restore([copy.deepcopy(reference.state_dict()["state"][0])])
        theirs.grad = torch.sin(torch.arange(2, dtype=torch.float64) + i)
        reference.step()
    steps_of(optimizer, 3, 3)
    torch.testing.assert_close(ours, theirs)


def test_our_rules_need_no_compiler():
    """Torch's make its optimisers import torch._dynamo, which takes some 75 MB."""
    code = (
        "import sys, torch\n"
        "from modrl.agent.optimizers import Adam\n"
        "p = torch.nn.Parameter(torch.ones(2))\n"
        "Adam.Config().build(parameters=[p]).step([torch.ones(2)], 0.0)\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
