"""Atari games: their names, what an observation is, lives, raw rewards, the frame cap, and that settings mean the same for every id."""

import numpy as np
import pytest

from modrl.config import ConfigError, Settings, read, resolve, validate
from modrl.envs import Atari, Envs, probe
from modrl.envs.atari import rom_name
from tests.envs.helpers import episodes

IDS = ["ALE/Pong-v5", "PongNoFrameskip-v4"]


def atari(game, count=2, seeds=None, training=True, **settings):
    config = Atari.Config(game=game, count=count, **settings)
    return config.build(numbers=range(count), seeds=range(10, 10 + count) if seeds is None else seeds, training=training)


def play(envs, steps, seed=0):
    """The reset's timestep and those of `steps` random actions."""
    generator = np.random.default_rng(seed)
    timesteps = [envs.reset()]
    timesteps += [envs.step(generator.integers(envs.action_space.n, size=len(envs.numbers))) for _ in range(steps)]
    return timesteps


@pytest.mark.parametrize(
    ("name", "rom"),
    [
        *[(name, "pong") for name in ("pong", "Pong", "PONG", *IDS, "PongDeterministic-v0", "Pong-ram-v5", "Pong-v4")],
        *[(name, "ms_pacman") for name in ("ms_pacman", "MsPacman", "Ms. Pacman", "ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4", "ms-pacman")],
        ("Space Invaders", "space_invaders"),
        ("UpNDown", "up_n_down"),
    ],
)
def test_a_game_is_known_in_any_usual_spelling(name, rom):
    assert rom_name(name) == rom


def test_an_unknown_game_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no game is called 'Brakeout'; did you mean 'breakout'\?"):
        rom_name("Brakeout")
    with pytest.raises(ValueError, match=r"no game is called 'chess2000x'; known are adventure, "):
        rom_name("chess2000x")


def frame_numbers(envs, steps=100):
    """The emulator's frame numbers at the reset and after `steps`."""
    recorded = []
    reset, step = envs.vector.reset, envs.finish
    envs.vector.reset = lambda **options: (result := reset(**options), recorded.append(result[1]["frame_number"][0]))[0]
    envs.finish = lambda: (result := step(), recorded.append(result[4]["frame_number"][0]))[0]
    play(envs, steps)
    return recorded[0], recorded[-1]


@pytest.mark.parametrize("game", IDS)
@pytest.mark.parametrize("action_repeat", [4, 3])
def test_an_action_lasts_as_many_frames_as_configured_whichever_id_is_given(game, action_repeat):
    envs = atari(game, 1, action_repeat=action_repeat, noop_max=0)
    before, after = frame_numbers(envs)
    assert after - before == 100 * action_repeat
    assert envs.action_repeat == action_repeat


@pytest.mark.parametrize("game", IDS)
def test_actions_stick_as_configured_whichever_id_is_given(game):
    def frames(sticky, seed):
        return np.concatenate([t.obs for t in play(atari(game, 1, seeds=[seed], sticky=sticky, noop_max=0), 40)])

    assert (frames(0.0, 1) == frames(0.0, 2)).all()  # nothing random is left in the game
    assert (frames(0.25, 1) != frames(0.25, 2)).any()
    assert (frames(0.25, 1) == frames(0.25, 1)).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("game: pong, action_repeat: 0", "envs.action_repeat: must be at least 1, got 0"),
        ("game: pong, sticky: 1.5", "envs.sticky: must be at most 1, got 1.5"),
        ("game: pong, frameskip: 4", "envs.frameskip: unknown key"),
        ("count: 3", "envs.game: missing"),
    ],
)
def test_settings_that_make_no_game_are_refused(text, message):
    class File(Settings):
        envs: Envs.Config

    with pytest.raises(ConfigError) as error:
        validate(File, read(f"envs: {{name: atari, {text}}}", "bad.yaml"), "bad.yaml")
    assert message in str(error.value)


def test_a_lost_life_ends_the_learners_episode_but_not_the_game():
    envs = atari("breakout", 2)
    lives = []
    step = envs.finish
    envs.finish = lambda: (result := step(), lives.append(result[4]["lives"].copy()))[0]
    timesteps = play(envs, 600)
    terminated = np.array([t.terminated for t in timesteps[1:]])  # [T, B]
    first = np.array([t.first for t in timesteps[1:]])
    lost = np.diff(np.array([np.full(2, 5), *lives]), axis=0) != 0  # game over is the change from 1 life to 5
    games = [[e.env for e in t.episodes] for t in timesteps[1:]]
    assert (terminated == lost).all()
    assert (first == terminated).all()
    over = np.diff(np.array([np.full(2, 5), *lives]), axis=0) > 0
    assert games == [np.flatnonzero(row).tolist() for row in over]
    assert over.sum() >= 3
    assert terminated.sum() >= 5 * over.sum()
    assert all(t.final_obs is None and t.valid.all() for t in timesteps)


def test_return_and_length_count_the_whole_game_in_raw_reward():
    envs = atari("ms_pacman", 2)
    timesteps = play(envs, 700)
    found = episodes(timesteps)
    assert len(found) >= 2
    reward = np.array([t.reward for t in timesteps[1:]], np.float64)
    for env in range(2):
        ends = [i + 1 for i, t in enumerate(timesteps[1:]) if any(e.env == env for e in t.episodes)]
        pieces = np.split(reward[:, env], ends)[:-1]
        assert [(e.reward, e.length) for e in found if e.env == env] == [(piece.sum(), len(piece)) for piece in pieces]
    assert reward.max() >= 10  # a pill pays 10, which clipping would hide


def test_in_evaluation_only_the_end_of_the_game_ends_an_episode():
    timesteps = play(atari("breakout", 2, training=False), 300)
    assert [t.terminated.sum() for t in timesteps] == [len(t.episodes) for t in timesteps]
    assert len(episodes(timesteps)) >= 2


def test_without_life_loss_training_sees_whole_games():
    timesteps = play(atari("breakout", 2, life_loss=False), 300)
    assert [t.terminated.sum() for t in timesteps] == [len(t.episodes) for t in timesteps]


@pytest.mark.parametrize("life_loss", [True, False])
def test_the_frame_cap_truncates_and_gives_the_last_observation(life_loss):
    timesteps = play(atari("pong", 2, max_frames=60, life_loss=life_loss), 30)
    assert [i for i, t in enumerate(timesteps) if t.truncated.all()] == [15, 30]
    assert sum(t.truncated.sum() for t in timesteps) == 4
    final = timesteps[15].final_obs
    assert final.shape == (2, 4, 84, 84)
    assert (final[:, :3] == timesteps[14].obs[:, 1:]).all()  # one frame more than the step before
    assert (final != timesteps[15].obs).any()
    assert [(e.length, e.env) for e in episodes(timesteps)] == [(15, 0), (15, 1)] * 2


@pytest.mark.parametrize("cap", range(92, 102))
def test_a_life_lost_near_the_frame_cap_is_no_end_of_the_game_unless_it_is_one(cap):
    envs = atari("breakout", 1, noop_max=0, max_frames=cap)  # without moving, the first life is lost in frame 96
    timesteps = [envs.reset(), *(envs.step(np.zeros(1, int)) for _ in range(26))]
    ends = [(i, bool(t.truncated[0]), len(t.episodes)) for i, t in enumerate(timesteps) if t.first[0] and i]
    capped = -(-cap // 4)
    expected = [(capped, True, 1)] if cap < 96 else [(24, False, 1)] if cap == 96 else [(24, False, 0), (capped, True, 1)]
    assert ends == expected
    assert episodes(timesteps)[0].length == capped


def test_games_repeat_by_seed_and_differ_by_seed():
    a, b, c = (play(atari("breakout", 2, seeds=seeds, threads=threads), 50) for seeds, threads in [([3, 4], 1), ([3, 4], 2), ([2**63 + 5, 4], 1)])
    assert all((x.obs == y.obs).all() for x, y in zip(a, b, strict=True))
    assert any((x.obs[0] != y.obs[0]).any() for x, y in zip(a, c, strict=True))
    assert all((x.obs[1] == y.obs[1]).all() for x, y in zip(a, c, strict=True))


def test_observations_are_not_written_to_again():
    envs = atari("breakout", 2)
    kept = [(t := envs.reset()).obs]
    copies = [t.obs.copy()]
    for _ in range(50):
        kept.append(envs.step(np.ones(2, int)).obs)
        copies.append(kept[-1].copy())
    assert all((a == b).all() for a, b in zip(kept, copies, strict=True))


def test_grey_frames_are_channels():
    found = probe(Atari.Config(game="pong", size=(60, 40), stack=3))
    assert (found.observation_space.shape, found.observation_space.dtype) == ((3, 60, 40), np.uint8)


def test_colours_are_channels_frame_by_frame():
    grey = play(atari("breakout", 1, size=(60, 40)), 20)[-1].obs
    timesteps = play(envs := atari("breakout", 1, size=(60, 40), grey=False, max_frames=40), 20)
    assert envs.observation_space.shape == timesteps[0].obs.shape[1:] == (12, 60, 40)
    assert timesteps[10].final_obs.shape == (1, 12, 60, 40)
    timesteps = play(atari("breakout", 1, size=(60, 40), grey=False), 20)
    colour = timesteps[-1].obs[0].reshape(4, 3, 60, 40).astype(float)
    mixed = np.einsum("fchw,c->fhw", colour, [0.299, 0.587, 0.114])
    assert np.abs(mixed - grey[0]).mean() < 3
    assert np.abs(colour[:, 0] - colour[:, 2]).max() > 50  # breakout's bricks are no grey


def test_full_actions_and_the_games_own():
    assert atari("pong", 1).action_space.n == 6
    assert atari("pong", 1, full_actions=True).action_space.n == 18


def test_settings_survive_the_file():
    config = Atari.Config(game="pong", size=(60, 40), count=3)
    from modrl.config import dump

    assert resolve("envs", dump(config)) == config


def test_close_may_be_called_twice():
    envs = atari("pong", 1)
    envs.close()
    envs.close()


def test_atari_games_cannot_be_saved_and_say_so():
    envs = atari("pong", 1)
    assert not envs.exact
    with pytest.raises(NotImplementedError, match="Atari cannot be saved"):
        envs.state()
