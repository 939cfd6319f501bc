"""The vocabulary, and the scenes that the builtin model was trained on."""

import numpy as np
import pytest

from ssd_core.builtin import scenes, words


def test_plurals_and_synonyms_share_a_token():
    assert words.encode("two puppies") == words.encode("TWO dogs.")
    assert words.encode("A doughnut, on the beach") == words.encode("a donut on the sand")
    assert len({tuple(words.encode(name)) for name in words.OBJECTS}) == len(words.OBJECTS) == 48


def test_unknown_words_are_named_with_near_ones():
    with pytest.raises(ValueError, match=r'"wolf".*"rokcet" \(did you mean rocket'):
        words.encode("a wolf and a rokcet")


def test_a_long_prompt_is_refused():
    with pytest.raises(ValueError, match="has 27 words; the builtin model reads at most 24"):
        words.encode("a cat and " * 9)


def test_a_scene_is_a_function_of_seed_and_index():
    first, second = scenes.example(3, 14), scenes.example(3, 14)
    assert first[:2] == second[:2]
    assert np.array_equal(first[2], second[2])


def test_layouts_are_true_to_their_captions():
    """200 scenes of each kind: everything inside the picture, positions as worded, captions in the vocabulary."""
    relations = {
        "left": lambda a, b: a[0] < b[0] and abs(a[0] - b[0]) > abs(a[1] - b[1]),
        "right": lambda a, b: a[0] > b[0] and abs(a[0] - b[0]) > abs(a[1] - b[1]),
        "above": lambda a, b: a[1] < b[1] and abs(a[1] - b[1]) > abs(a[0] - b[0]),
        "below": lambda a, b: a[1] > b[1] and abs(a[1] - b[1]) > abs(a[0] - b[0]),
    }
    for kind in scenes.KINDS:
        for i in range(200):
            rng = np.random.default_rng((9, i))
            scene = scenes.sample_scene(rng, kind=kind)
            text = scenes.caption(scene, rng)
            assert len(words.split_words(text)) == len(words.encode(text)) <= 17
            for placed in scene.objects:
                assert min(placed.x, placed.y) >= 0
                assert max(placed.x, placed.y) + placed.size <= scenes.GRID
            if kind == "position":
                assert relations[scene.position](scene.objects[0].center, scene.objects[1].center)
            elif kind == "counting":
                assert ("two " if len(scene.objects) == 2 else "three ") in text


def test_held_out_combinations_never_reach_training():
    training = {scenes.sample_scene(np.random.default_rng((1, i))).combination for i in range(2000)}
    held = {scenes.sample_scene(np.random.default_rng((2, i)), held=True).combination for i in range(300)}
    assert not training & held


def test_a_picture_has_the_size_of_the_token_grid():
    _, _, picture = scenes.example(0, 0)
    assert picture.shape == (192, 192, 3)
    assert picture.dtype == np.uint8
