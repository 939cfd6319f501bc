"""Ablations that train heads: what is compared, and what is put on the clock."""

import argparse
import itertools
from types import SimpleNamespace

import pytest
from accelerate.state import AcceleratorState
from fakes import FakeBackbone, random_heads

import ssd_core.bench.__main__ as bench
from ssd_core.bench import ablations
from ssd_core.decoders import DecodeConfig
from ssd_core.heads import SPACES
from ssd_core.schedule import Schedule

BASE = DecodeConfig(schedule=Schedule(b=2, k_h=3))
DRAWING, BY_SSD, STEP = 40.0, 9.0, 1.0  # seconds a picture, by AR and by SSD, and a step


class Painter(FakeBackbone):
    """Knows a code for any picture."""

    def encode_image(self, rgb):
        return super().encode_image(rgb) % self.codebook_size


@pytest.fixture(autouse=True)
def plain_precision():
    AcceleratorState._reset_state(reset_partial_state=True)  # another test may have asked for mixed precision
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def trained(monkeypatch):
    """Trainings as (pictures, whose, steps), on a clock that only drawing and training move."""
    found, clock, draw = [], [0.0], ablations.draw_corpus

    def drawn(backbone, prompts, folder, *, batch, config=None, **options):
        one = BY_SSD if config else DRAWING
        clock[0] -= one * batch * len(list(folder.glob("*")))
        draw(backbone, prompts, folder, batch=batch, config=config, **options)
        clock[0] += one * batch * len(list(folder.glob("*")))

    def train(backbone, corpus, config, *, accelerator, work):
        clock[0] += STEP * config.steps
        found.append((len(corpus), corpus.decoder, config.steps))
        return random_heads(backbone, config.k_h, config.k_v)

    monkeypatch.setattr(ablations, "draw_corpus", drawn)
    monkeypatch.setattr(ablations, "train_heads", train)
    monkeypatch.setattr(ablations, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    return found


def test_more_pictures_are_compared_with_others_at_equal_time(trained):
    variants = ablations.train_variants("data", Painter(3, 4), BASE, pictures=8, steps=5)
    by_ssd = "ar, then ssd b=2 i=0 k_h=3 k_v=1 rule=accept-reject"
    own = [(2, "ar", 5), (8, "ar", 5), (2 + 26, by_ssd, 5)]
    assert trained == [*own, *((n, "pictures", 5) for n in (2, 8, 32)), (32, "pictures", 325)]
    bootstrapped = 2 * DRAWING + 5 + 26 * BY_SSD + 5
    seconds = [2 * DRAWING + 5, 8 * DRAWING + 5, bootstrapped, 5, 5, 5, 8 * DRAWING + 5]
    assert [each.seconds for each in variants] == seconds
    assert seconds[1] - 2 * BY_SSD < bootstrapped <= seconds[1]  # no batch more would have fitted
    names = ["2 own", "8 own", "2 own, 26 by SSD with their heads"]
    names += ["2 given", "8 given", "32 given", "32 given, 325 steps"]
    assert [each.name for each in variants] == names


def test_ssd_draws_other_pictures_with_the_first_heads(monkeypatch):
    """Other scenes and seeds than the quarter that trained them; at least one batch, however little time there is."""
    calls, draw = [], ablations.draw_corpus

    def drawn(backbone, prompts, folder, **options):
        calls.append((prompts, options))
        draw(backbone, prompts, folder, **options)

    monkeypatch.setattr(ablations, "draw_corpus", drawn)
    monkeypatch.setattr(ablations, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    first, _, bootstrapped, *_ = ablations.train_variants("data", Painter(3, 4), BASE, pictures=8, steps=1)
    (few, _), (own, _), (more, options) = calls
    assert [len(prompts) for prompts, _ in calls] == [2, 8, 2]
    assert own[:2] == few
    assert options["heads"] is first.heads
    assert (options["seed"], options["config"].decoder) == (2, "ssd")
    assert more == own[2:4]
    assert bootstrapped.name == "2 own, 2 by SSD with their heads"


def test_every_space_learns_from_the_same_pictures():
    """With the real trainer."""
    variants = ablations.train_variants("spaces", Painter(3, 4), BASE, pictures=8, steps=2)
    assert [each.name for each in variants] == [each.heads.space for each in variants] == list(SPACES)
    assert all((each.heads.k_h, each.heads.k_v) == (3, 1) for each in variants)


def test_trained_ablations_on_the_command_line(trained):
    options = argparse.ArgumentParser()
    bench._add_options(options, "ablations")
    args = options.parse_args(["data", "--train-pictures", "8", "--train-steps", "5"])
    entries = bench._variants(args, Painter(3, 4), None, "data", BASE)
    assert [name for name, _, _ in entries][:3] == [
        "2 own (85 s)",
        "8 own (325 s)",
        "2 own, 26 by SSD with their heads (324 s)",
    ]
    assert all(contender.config.schedule.b == 0 and heads.k_v == 1 for _, contender, heads in entries)
    args.train_pictures = 3
    with pytest.raises(ValueError, match="at least 4 pictures"):
        bench._variants(args, Painter(3, 4), None, "spaces", BASE)
