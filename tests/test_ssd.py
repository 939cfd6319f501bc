"""The paper's decoder: pass counts, fixed points, batches, seeds."""

from dataclasses import replace

import pytest
import torch
from fakes import FakeBackbone, random_heads, run, uncached_states

from ssd_core.correction import RULES
from ssd_core.decoders import DecodeConfig, decode
from ssd_core.grid import TokenGrid
from ssd_core.heads import HeadsError, IdentityHeads
from ssd_core.sampling import SamplingConfig
from ssd_core.schedule import COMMITS, Schedule
from ssd_core.session import FINAL, DecodingSession

SCHEDULES = [
    Schedule(b=0, k_h=3),
    Schedule(b=1, k_h=2),
    Schedule(b=2, k_h=1),
    Schedule(b=2, i=1, k_h=3, k_v=2),  # 6 rows below the first: whole blocks
    Schedule(b=1, i=3, k_h=2, k_v=3),
    Schedule(b=3, i=0, k_h=3, k_v=2),  # joint
    Schedule(b=0, i=1, k_h=3, k_v=3),
]
FEWER = [replace(schedule, commits=commits) for schedule in SCHEDULES for commits in ("merged", "early")]


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7])  # with k_v = 2, 3: short last blocks of every length
@pytest.mark.parametrize("eol", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES + FEWER, ids=str)
def test_counted_passes_equal_planned_ones(rows, eol, schedule, monkeypatch):
    backbone = FakeBackbone(rows, eol=eol)
    passes = []
    forward = backbone.transformer.forward
    monkeypatch.setattr(backbone.transformer, "forward", lambda *args: passes.append(1) or forward(*args))
    last, _ = run(backbone, DecodeConfig(schedule=schedule), heads=random_heads(backbone))
    assert len(passes) == last.nfe == schedule.planned_nfe(backbone.grid())
    assert last.progress == 1
    assert (last.status == FINAL).all()


@pytest.mark.parametrize("eol", [False, True])
@pytest.mark.parametrize("schedule", [Schedule(b=8, k_h=1), Schedule(b=14, i=8, k_h=1, k_v=2)], ids=str)
def test_greedy_rounds_reach_ar_from_any_draft(eol, schedule):
    """n verify rounds make the first n cells of a block exact, so enough rounds give AR's tokens."""
    backbone = FakeBackbone(eol=eol)
    sampling = SamplingConfig(cfg=2.0)
    expected, _ = run(backbone, DecodeConfig("ar", rule="greedy"), sampling=sampling)
    for heads in (None, random_heads(backbone)):
        got, _ = run(backbone, DecodeConfig(schedule=schedule, rule="greedy"), heads=heads, sampling=sampling)
        assert torch.equal(got.tokens, expected.tokens)


def test_shared_noise_rounds_reach_ar_of_the_same_seed():
    backbone = FakeBackbone()
    for seed in range(5):
        expected, _ = run(backbone, DecodeConfig("ar"), seeds=[seed])
        config = DecodeConfig(schedule=Schedule(b=8, k_h=1), rule="shared-noise")
        got, _ = run(backbone, config, seeds=[seed])
        assert torch.equal(got.tokens, expected.tokens)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("eol", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_merged_commits_change_nothing(rule, eol, schedule):
    backbone = FakeBackbone(6, 4, eol=eol)
    heads, sampling = random_heads(backbone), SamplingConfig(cfg=2.0)
    pictures = []
    for commits in ("own", "merged"):
        config = DecodeConfig(schedule=replace(schedule, commits=commits), rule=rule)
        pictures.append(run(backbone, config, heads=heads, sampling=sampling, prompts=["a", "bc"], seeds=[1, 2])[0])
    own, merged = pictures
    assert torch.equal(own.tokens, merged.tokens)
    assert merged.nfe < own.nfe


@pytest.mark.parametrize("rule", ["greedy", "shared-noise"])
@pytest.mark.parametrize("eol", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES + FEWER + [Schedule(b=7, i=4, k_h=3, k_v=3)], ids=str)
def test_settling_changes_nothing_but_the_passes(rule, eol, schedule):
    """A row that a round keeps whole is a fixed point of the rules whose choice depends on the context alone."""
    backbone = FakeBackbone(6, 4, eol=eol)
    heads, sampling = random_heads(backbone), SamplingConfig(cfg=2.0, temperature=0.3)
    pictures = []
    for settle in (False, True):
        config = DecodeConfig(schedule=replace(schedule, settle=settle), rule=rule)
        pictures.append(run(backbone, config, heads=heads, sampling=sampling, prompts=["a", "bc"], seeds=[1, 2])[0])
    plain, settled = pictures
    assert torch.equal(plain.tokens, settled.tokens)
    assert settled.nfe <= plain.nfe == schedule.planned_nfe(backbone.grid())
    assert settled.nfe < plain.nfe or schedule.b < 7
    assert settled.progress == 1
    assert (settled.status == FINAL).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("schedule", SCHEDULES + FEWER, ids=str)
def test_settling_takes_no_more_passes_than_planned_with_any_rule(rule, schedule):
    backbone = FakeBackbone(6, 4)
    config = DecodeConfig(schedule=replace(schedule, settle=True), rule=rule)
    last, session = run(backbone, config, heads=random_heads(backbone), prompts=["a", "bc"], seeds=[1, 2])
    assert last.nfe <= schedule.planned_nfe(backbone.grid())
    assert config.planned_nfe(session) is None
    assert (last.status == FINAL).all()


@pytest.mark.parametrize(
    ("grid", "schedule", "own", "merged", "early"),
    [
        (TokenGrid(24, 24), Schedule(b=2), 80, 79, 57),
        (TokenGrid(24, 24), Schedule(b=1), 57, 56, 34),
        (TokenGrid(24, 24), Schedule(b=0), 34, 33, 33),  # a row that nothing verified has to be committed
        (TokenGrid(48, 48, eol=True), Schedule(b=5, i=4, k_v=2), 280, 256, 233),
        (TokenGrid(48, 48, eol=True), Schedule(b=9, k_v=2), 284, 260, 237),
    ],
    ids=str,
)
def test_passes_without_commits_of_their_own(grid, schedule, own, merged, early):
    counts = {"own": own, "merged": merged, "early": early}
    for commits, nfe in counts.items():
        assert replace(schedule, commits=commits).planned_nfe(grid) == nfe


@pytest.mark.parametrize("rule", RULES)
def test_a_batch_equals_its_single_images(rule):
    backbone = FakeBackbone()
    heads = random_heads(backbone)
    config = DecodeConfig(schedule=Schedule(b=2, i=1, k_h=3, k_v=2), rule=rule)
    prompts, seeds = ["a", "a long one", "bc"], [3, 4, 5]
    sampling = SamplingConfig(cfg=2.0)
    together, _ = run(backbone, config, heads=heads, sampling=sampling, prompts=prompts, seeds=seeds)
    for i in range(3):
        alone, _ = run(backbone, config, heads=heads, sampling=sampling, prompts=[prompts[i]], seeds=[seeds[i]])
        assert torch.equal(together.tokens[i], alone.tokens[0])


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "greedy"])
def test_same_seed_same_picture_other_seed_another(rule):
    backbone = FakeBackbone()
    config = DecodeConfig(rule=rule)
    pictures = [run(backbone, config, seeds=[seed])[0].tokens for seed in (7, 7, 8)]
    assert torch.equal(pictures[0], pictures[1])
    assert not torch.equal(pictures[0], pictures[2])


def test_ar_takes_one_pass_per_cell_end_of_line_included():
    backbone = FakeBackbone(4, 5, eol=True)
    last, _ = run(backbone, DecodeConfig("ar"))
    assert last.nfe == backbone.grid().size == 4 * 6


def test_schedule_beyond_the_heads_is_refused():
    backbone = FakeBackbone()
    with pytest.raises(HeadsError, match="lower k_h or k_v"):
        run(backbone, DecodeConfig(schedule=Schedule(k_h=5)), heads=random_heads(backbone, k_h=3))


def test_listener_is_off_the_clock_and_out_of_inference_mode():
    session = DecodingSession(FakeBackbone(), ["a"], [0])
    before = None
    for event in decode(session, DecodeConfig()):
        if before is not None:
            assert event.seconds >= before
        before = event.seconds
        assert not torch.is_inference_mode_enabled()
        stopped = session.seconds
        assert session.seconds == stopped


def test_closing_the_iterator_ends_the_run(monkeypatch):
    backbone = FakeBackbone()
    session = DecodingSession(backbone, ["a"], [0])
    events = decode(session, DecodeConfig())
    next(events)
    monkeypatch.setattr(backbone.transformer, "forward", lambda *args: pytest.fail("a pass after the end"))
    events.close()
    assert session.nfe == 1


# ------------------------------------------------------------- the same algorithm, slow and obvious


class ReferenceSSD:
    """One image, no cache, one cell at a time: what the fast decoder has to equal token for token."""

    def __init__(self, session, heads, schedule, rule):
        self.session, self.heads, self.schedule, self.rule = session, heads, schedule, rule
        self.grid, self.tokens = session.grid, session.tokens.clone()

    def states(self, y, x):
        """The state [rows, 1, D] that predicts cell (y, x), given the present tokens."""
        return uncached_states(self.session, self.tokens)[:, self.grid.index(y, x)][:, None]

    def log_p(self, h):
        return self.session.log_probs(h)[0, 0]

    def put(self, y, x, token):
        self.tokens[0, self.grid.index(y, x)] = token

    def noise(self, kind, y, x, counter):
        noise, rows = self.session.noise, range(y, y + 1)
        return (noise.shared(rows) if kind == "shared" else getattr(noise, kind)(rows, counter))[0, 0, x]

    def draft(self, y, x, h_hat):
        log_q = self.log_p(h_hat)
        scores = log_q + self.noise("shared", y, x, 0) if self.rule == "shared-noise" else log_q
        self.put(y, x, scores.argmax())
        return log_q

    def corrected(self, y, x, log_q, counter):
        """(new token, next reference) of one cell in one round; nothing is written yet."""
        log_p = self.log_p(self.states(y, x))
        if self.rule == "greedy":
            return log_p.argmax(), log_q
        if self.rule == "sample":
            return (log_p + self.noise("fresh", y, x, counter)).argmax(), log_q
        if self.rule == "shared-noise":
            return (log_p + self.noise("shared", y, x, counter)).argmax(), log_q
        token = self.tokens[0, self.grid.index(y, x)]
        p, q = log_p.exp(), log_q.exp()
        if self.noise("uniform", y, x, counter) < p[token] / q[token]:
            return token, log_q
        residual = (p - q).clamp(min=0)
        return (residual.log() + self.noise("fresh", y, x, counter)).argmax(), log_p

    def verify(self, cells, references, counter):
        results = {cell: self.corrected(*cell, references[cell], counter) for cell in cells}
        for cell, (token, reference) in results.items():
            self.put(*cell, token)
            references[cell] = reference

    def e(self, y, x):
        return self.session.embed(self.tokens[:, self.grid.index(y, x)][:, None])

    def run(self):
        grid, schedule = self.grid, self.schedule
        log_p = self.log_p(self.states(0, 0))
        self.put(0, 0, (log_p if self.rule == "greedy" else log_p + self.noise("shared", 0, 0, 0)).argmax())
        for x in range(0, grid.cols - 1, schedule.k_h):
            columns = range(x + 1, min(x + 1 + schedule.k_h, grid.cols))
            h, e = self.states(0, x), self.e(0, x)
            references = {(0, c): self.draft(0, c, self.heads.draft_right(c - x, h, e)) for c in columns}
            self.verify(list(references), references, 1)
        for y, n in schedule.blocks(grid):
            sources = [(self.states(y - 1, x), self.e(y - 1, x)) for x in range(grid.cols)]
            references = {}
            for k in range(n):
                for x, (h, e) in enumerate(sources):
                    references[y + k, x] = self.draft(y + k, x, self.heads.draft_below(k + 1, h, e))
            counter = 1
            for k in range(n):  # row y + k is committed once rows before it are, after b or i rounds
                for _ in range(schedule.b if k == 0 else schedule.i):
                    self.verify([cell for cell in references if cell[0] >= y + k], references, counter)
                    counter += 1
        return self.tokens


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("eol", [False, True])
@pytest.mark.parametrize("schedule", [SCHEDULES[2], SCHEDULES[3], SCHEDULES[4], SCHEDULES[6]], ids=str)
@torch.no_grad()
def test_the_fast_decoder_equals_the_obvious_one(rule, eol, schedule):
    backbone = FakeBackbone(6, 4, eol=eol)
    heads, sampling = random_heads(backbone), SamplingConfig(cfg=2.0, top_k=12)
    for seed in range(2):
        fresh = DecodingSession(backbone, ["abc"], [seed], sampling)
        expected = ReferenceSSD(fresh, heads, schedule, rule).run()
        config = DecodeConfig(schedule=schedule, rule=rule)
        _, session = run(backbone, config, heads=heads, sampling=sampling, seeds=[seed])
        assert torch.equal(session.tokens, expected)


class OracleHeads(IdentityHeads):
    """Drafts the very states of a finished picture, h_table [rows, grid rows, cols, D]."""

    k_h = k_v = 99

    def __init__(self, h_table):
        self.h_table = h_table

    def require(self, *args):
        pass

    def draft_right(self, offset, h, e):
        x = (self.h_table[:, 0] - h).abs().sum((0, 2)).argmin()
        return self.h_table[:, 0, x + offset][:, None]

    def draft_below(self, offset, h, e):
        y = (self.h_table - h[:, None]).abs().sum((0, 2, 3)).argmin()
        return self.h_table[:, y + offset]


@pytest.mark.parametrize("commits", COMMITS)
@pytest.mark.parametrize("k_v", [1, 2])
def test_perfect_drafts_need_no_verification(k_v, commits):
    """With the true states as drafts and shared noise, r = 0 is AR's picture, and no round changes a token."""
    backbone = FakeBackbone(5, 6, eol=True)
    sampling = SamplingConfig(cfg=2.0)
    expected, session = run(backbone, DecodeConfig("ar"), sampling=sampling)
    h = uncached_states(session, session.tokens).unflatten(1, (5, 7))[:, :, :6]
    for b in (0, 2):
        config = DecodeConfig(schedule=Schedule(b=b, k_h=3, k_v=k_v, commits=commits), rule="shared-noise")
        session = DecodingSession(backbone, ["abc"], [0], sampling)
        for event in decode(session, config, OracleHeads(h)):
            assert event.accepted is None or event.accepted.all()
        assert torch.equal(event.tokens, expected.tokens)
