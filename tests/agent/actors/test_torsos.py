"""Torsos and encoders: what reaches the network, sizes, and clear refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pydantic import ValidationError
from torch import nn

from modrl.agent.actors import MLP, ActorCritic, Deep, Identity, Nature, Shallow, Torso
from modrl.agent.actors.encoder import Encoder
from modrl.agent.actors.images import ImageTorso
from modrl.agent.actors.resnet import FixupResidual
from modrl.config import BadInput, dump, resolve
from tests.agent.actors.playing import pixels, vector

ATARI = pixels(4, 84, 84)


class Pixels(ImageTorso, name="pixels"):
    """What image torsos are given, as features."""

    def __init__(self, config: ImageTorso.Config, *, space) -> None:
        super().__init__(config, space=space)
        self.size = int(np.prod(self.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)


def network_input(space, obs: torch.Tensor, **settings) -> torch.Tensor:
    torso = Pixels.Config(**settings).build(space=space)
    return torso.prepare(obs)


def test_uint8_is_divided_by_255_once():
    assert (network_input(ATARI, torch.full((1, 4, 84, 84), 255, dtype=torch.uint8)) == 1.0).all()
    assert (Encoder(Identity.Config(), pixels(7))(torch.full((2, 7), 255, dtype=torch.uint8)) == 1.0).all()


def test_float_images_are_left_alone():
    space = spaces.Box(0, 1, (4, 84, 84), np.float32)
    assert (network_input(space, torch.full((1, 4, 84, 84), 0.5)) == 0.5).all()


@pytest.mark.parametrize(("shape", "expected"), [
    ((40, 60, 3), (3, 40, 60)), ((3, 40, 60), (3, 40, 60)), ((84, 84, 1), (1, 84, 84)), ((4, 84, 84), (4, 84, 84)),
    ((3, 40, 4), (3, 40, 4)), ((84, 84, 12), (12, 84, 84)), ((12, 84, 84), (12, 84, 84)), ((8, 8, 17), (17, 8, 8)),
    ((4, 40, 60, 3), (12, 40, 60)), ((4, 3, 40, 60), (12, 40, 60)),
])  # fmt: skip
def test_channels_come_first_whichever_way_the_image_came(shape, expected):
    image = torch.arange(int(np.prod(shape))).remainder(251).to(torch.uint8).view(1, *shape)
    seen = network_input(pixels(*shape), image)
    assert seen.shape == (1, *expected)
    if shape == (40, 60, 3):
        torch.testing.assert_close(seen[0, 2, 5, 7], image[0, 5, 7, 2] / 255)
    if shape == (4, 40, 60, 3):
        torch.testing.assert_close(seen[0, 3 * 2 + 1, 5, 7], image[0, 2, 5, 7, 1] / 255)


def test_the_layout_can_be_said():
    image = torch.zeros(1, 3, 40, 4, dtype=torch.uint8)
    assert network_input(pixels(3, 40, 4), image, layout="channels_last").shape == (1, 4, 3, 40)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("space", [ATARI, pixels(40, 60, 3), spaces.Box(0, 1, (3, 40, 60), np.float32)])
def test_each_image_may_be_standardised(space, memory_format):
    faint = (space.sample() * 0.3).astype(space.dtype)
    images = torch.from_numpy(np.stack([space.sample(), faint, np.ones_like(faint)]))
    torso = Pixels.Config(standardize=True).build(space=space)
    torso.memory_format = memory_format
    plain = network_input(space, images).double().numpy()
    seen = torso.prepare(images)
    assert seen.is_contiguous(memory_format=memory_format)
    for image, expected in zip(seen.numpy()[:2], plain[:2], strict=True):
        np.testing.assert_allclose(image, (expected - expected.mean()) / expected.std(), atol=1e-3)
    assert (seen[2] == 0).all()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(torso.prepare(images).float(), seen, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("torso", "flat", "size", "parameters"), [
    ("nature", 3136, 512, 32 * 4 * 64 + 32 + 64 * 32 * 16 + 64 + 64 * 64 * 9 + 64 + 3136 * 512 + 512),
    ("shallow", 2592, 256, 16 * 4 * 64 + 16 + 32 * 16 * 16 + 32 + 2592 * 256 + 256),
    ("deep", 3872, 256, (4 * 16 + 16 * 32 + 32 * 32) * 9 + 80 + 4 * (16 * 16 * 9 + 16) + 8 * (32 * 32 * 9 + 32) + 3872 * 256 + 256),
])  # fmt: skip
def test_networks_have_the_papers_sizes_on_atari(torso, flat, size, parameters):
    net = resolve("torso", torso).build(space=ATARI)
    assert net.linear.in_features == flat
    assert net.size == size
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert net(net.prepare(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))).shape == (2, size)


def test_a_fixup_network_begins_as_its_skip_connections():
    torch.manual_seed(0)
    net = Deep.Config(fixup=True).build(space=pixels(3, 16, 16))
    blocks = [module for module in net.modules() if isinstance(module, FixupResidual)]
    assert len(blocks) == 6
    for block in blocks:
        x = torch.randn(2, block.first.in_channels, 5, 5)
        assert torch.equal(block(x), x)
        expected = (2 / (block.first.in_channels * 9)) ** 0.5 * 6**-0.5
        assert block.first.weight.std().item() == pytest.approx(expected, rel=0.1)


def test_orthogonal_initialisation_has_its_gains():
    torch.manual_seed(0)
    actor = ActorCritic.Config(init="orthogonal").build(observation_space=vector(8), action_space=spaces.Discrete(3))
    for module, gain in ((actor.trunk.encoder.torsos[0].layers[0], 2**0.5), (actor.policy, 0.01), (actor.value, 1.0)):
        assert torch.linalg.matrix_norm(module.weight, 2).item() == pytest.approx(gain, rel=1e-4)
        assert not module.bias.any()


def test_discrete_observations_become_one_hot_from_their_start():
    assert Encoder(Identity.Config(), spaces.Discrete(3, start=5))(torch.tensor([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]
    multi = Encoder(Identity.Config(), spaces.MultiDiscrete([2, 3], start=[1, -1]))
    assert multi(torch.tensor([[2, -1]])).tolist() == [[0, 1, 1, 0, 0]]
    assert Encoder(Identity.Config(), spaces.MultiBinary(2))(torch.tensor([[1, 0]], dtype=torch.int8)).tolist() == [[1, 0]]


def test_an_embedding_has_a_row_for_each_value():
    torso = resolve("torso", {"name": "embedding", "width": 2}).build(space=spaces.MultiDiscrete([2, 3], start=[1, -1]))
    rows = torso(torso.prepare(torch.tensor([[1, -1], [2, 1]])))
    torch.testing.assert_close(rows, torso.table.weight[torch.tensor([[0, 2], [1, 4]])].flatten(1))


@pytest.mark.parametrize("keys", ["ab", "ba"])
def test_parts_of_an_observation_are_matched_by_key(keys):
    space = spaces.Dict([("b", vector(1)), ("a", vector(2))])
    assert list(space.spaces) == ["b", "a"]
    obs = {"a": torch.tensor([[1.0, 2.0]]).expand(3, 2), "b": torch.full((3, 1), 3.0)}
    assert Encoder(Identity.Config(), space)({key: obs[key] for key in keys}).tolist() == [[1, 2, 3]] * 3


NESTED = spaces.Dict({"speed": vector(2), "camera": spaces.Dict({"left": pixels(40, 40, 3), "near": spaces.Tuple([vector(1), spaces.Discrete(2)])})})


def test_torsos_are_chosen_by_key():
    choice = {"camera.left": "shallow", "speed": {"name": "mlp", "hidden": [5]}, "camera.near.0": "identity", "camera.near.1": "identity"}
    config = ActorCritic.Config(torso=choice)
    encoder = Encoder(config.torso, NESTED)
    assert [type(torso) for torso in encoder.torsos] == [Shallow, Identity, Identity, MLP]
    assert encoder.size == 256 + 1 + 2 + 5


def test_auto_chooses_by_the_observation():
    assert [type(torso) for torso in Encoder(ActorCritic.Config().torso, NESTED).torsos] == [Nature, MLP, MLP, MLP]
    assert type(Encoder(ActorCritic.Config().torso, pixels(7, 7, 3)).torsos[0]) is Deep
    assert type(Encoder(resolve("torso", {"name": "auto", "image": "shallow"}), ATARI).torsos[0]) is Shallow


@pytest.mark.parametrize(("torso", "space", "words"), [
    ("nature", pixels(3, 20, 30), "torso nature needs images of 36 pixels a side, got 20x30 with 3 channels: use deep or mlp"),
    ("shallow", pixels(3, 8, 8), "torso shallow needs images of 20 pixels a side, got 8x8"),
    ("deep", vector(), r"torso deep takes images, a Box of three sizes or a stack of such, got Box\(4,\) of float32: use mlp"),
    ("shallow", spaces.Dict({"x": vector()}), "observation 'x': torso shallow takes images"),
    ("embedding", vector(), r"torso embedding takes Discrete and MultiDiscrete observations, got Box\(4,\)"),
    ("mlp", spaces.Text(3), "no torso takes observations of Text; supported are Box, Discrete"),
    ("mlp", spaces.Dict({}), "the observation space is empty"),
    ({"a": "mlp"}, vector(), "the observation has no keys: give one torso"),
    ({"sped": "mlp"}, NESTED, r"torso.sped: the observation has no such key; did you mean 'speed'\?"),
    ({"speed": "mlp"}, NESTED, "torso: no torso for camera.left, camera.near.0, camera.near.1; give one for each key"),
    ({"name": "deep", "fixup": True}, ATARI, "init: orthogonal would undo the torso's fixup: true"),
])  # fmt: skip
def test_what_cannot_be_seen_is_refused_by_name(torso, space, words):
    with pytest.raises(ValueError, match=words):
        ActorCritic.Config(torso=torso, init="orthogonal").build(observation_space=space, action_space=spaces.Discrete(2))


def test_a_missing_part_of_an_observation_is_named():
    with pytest.raises(ValueError, match="observations lack 'b'; there is \\['a'\\]"):
        Encoder(Identity.Config(), spaces.Dict({"a": vector(1), "b": vector(1)}))({"a": torch.zeros(1, 1)})


@pytest.mark.parametrize(("settings", "words"), [
    ({"torso": "natur"}, "did you mean 'nature'"),
    ({"torso": {"name": "mlp", "hiden": [3]}}, "did you mean 'hidden'"),
    ({"torso": {"camera": "deep", "speed": {"name": "mlp", "hidden": [0]}}}, r"torso.speed.hidden"),
    ({"value_torso": "mlp"}, "has no effect with value: shared"),
    ({"memory": "lstn"}, "did you mean 'lstm'"),
])  # fmt: skip
def test_mistakes_in_settings_are_explained(settings, words):
    with pytest.raises(ValidationError, match=words):
        ActorCritic.Config(**settings)


@pytest.mark.parametrize("settings", [
    {}, {"torso": "deep"}, {"torso": {"a.b": {"name": "mlp", "hidden": [3]}, "c": "nature"}},
    {"value": "separate", "value_torso": "mlp", "memory": {"name": "gru", "layers": 2}, "log_std": {"initial": -0.5}},
])  # fmt: skip
def test_settings_make_the_round_trip(settings):
    config = ActorCritic.Config(**settings)
    assert resolve("actor", dump(config)) == config


def test_the_schema_knows_torsos_by_key():
    torso = ActorCritic.Config.model_json_schema()["properties"]["torso"]
    assert any(option.get("type") == "object" and "additionalProperties" in option for option in torso["anyOf"])


class Mine(Torso, name="mine"):
    class Config(Torso.Config):
        width: int = 7

    def __init__(self, config: Config, *, space) -> None:
        super().__init__(config, space=space)
        self.size = config.width
        self.linear = nn.Linear(self.shape[0], config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def test_a_torso_of_ones_own_fits_in():
    actor = ActorCritic.Config(torso={"name": "mine", "width": 3}).build(observation_space=vector(), action_space=spaces.Discrete(2))
    assert actor.trunk.size == 3


class InPlace(Torso, name="in_place"):
    """Centres what it is given, in place."""

    def __init__(self, config, *, space):
        super().__init__(config, space=space)
        self.size = self.shape[0]

    def forward(self, x):
        return x.sub_(0.5)


def test_a_torso_may_not_write_to_the_observations():
    """They are the batch's own memory; what `prepare` has made anew is the torso's."""
    encoder = Encoder(InPlace.Config(), vector(3))
    with pytest.raises(BadInput, match=r"torso .*InPlace writes to the observations that it is given: let it work on a copy, not in place"):
        encoder(torch.ones(2, 3))
    with torch.inference_mode():
        assert encoder(torch.ones(2, 3)).tolist() == [[0.5] * 3] * 2  # there it cannot be seen
    assert Encoder(InPlace.Config(), pixels(3))(torch.full((2, 3), 255, dtype=torch.uint8)).tolist() == [[0.5] * 3] * 2


@pytest.mark.parametrize("name", ["nature", "shallow", "deep"])
@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84, 3), (2, 84, 84, 3)])
def test_under_autocast_pixels_become_at_once_what_the_first_layer_would_make_of_them(name, shape):
    torso = resolve("torso", {"name": name}).build(space=spaces.Box(0, 255, shape, np.uint8))
    images = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    exact = torso.prepare(images)
    with torch.autocast("cpu", torch.bfloat16):
        cast = torso.prepare(images)
        assert torch.equal(torso(cast), torso(exact))
    assert cast.dtype == torch.bfloat16
    assert exact.dtype == torch.float32
    assert torch.equal(cast, exact.bfloat16())
