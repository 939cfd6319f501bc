"""The head trainer: teacher states, corpora, learning, resuming, two processes."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from fakes import FakeBackbone
from safetensors import safe_open

import ssd_core.training.__main__ as cli
from ssd_core.decoders import DecodeConfig, decode
from ssd_core.heads import SPACES, HeadSet, load_heads
from ssd_core.sampling import SamplingConfig
from ssd_core.schedule import Schedule
from ssd_core.session import DecodingSession
from ssd_core.training.corpus import CorpusError, draw_corpus, load_corpus
from ssd_core.training.heads import (
    Batches,
    HeadLosses,
    HeadsConfig,
    encode_dropped,
    evaluate_heads,
    pairs,
    teacher_states,
    train_heads,
    untrained_heads,
)

PROMPTS = ["a", "a long one", "bc"]
CAPTIONS = ["a cat", "two dogs", "a bus on snow", "a pear", "three stars"]


@pytest.fixture
def accelerator():
    AcceleratorState._reset_state(reset_partial_state=True)  # another test may have asked for mixed precision
    yield Accelerator(cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """24 pictures of the eol backbone and their folder."""
    AcceleratorState._reset_state(reset_partial_state=True)
    folder, backbone = tmp_path_factory.mktemp("corpus"), FakeBackbone()
    prompts = [CAPTIONS[i % len(CAPTIONS)] for i in range(24)]
    draw_corpus(backbone, prompts, folder, accelerator=Accelerator(cpu=True), batch=8)
    return load_corpus(folder, backbone.fingerprint)


def fresh_heads():
    """Heads as they are before their first step."""
    heads = HeadSet(32, "none", 3, 2)
    for head in (*heads.horizontal, *heads.vertical):
        head.reset()
    return heads


def trained(folder):
    """The fp32 weights at the end of a run; heads files and returned heads are rounded to bf16."""
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


class Recorder(DecodingSession):
    """Keeps the states of all passes."""

    def prefill(self):
        self.states = [super().prefill()]
        return self.states[0]

    def forward(self, start, count):
        self.states.append(super().forward(start, count))
        return self.states[-1]


# ----------------------------------------------------------------------------------------- teacher states


@pytest.mark.parametrize("eol", [False, True])
@pytest.mark.parametrize("guided", [False, True])
def test_teacher_states_equal_those_of_decoding(eol, guided):
    backbone = FakeBackbone(eol=eol)
    session = Recorder(backbone, PROMPTS, [1, 2, 3], SamplingConfig(cfg=2.0 if guided else 1.0))
    *_, last = decode(session, DecodeConfig("ar"))
    grid = session.grid
    seen = torch.cat(session.states, 1).unflatten(1, (grid.rows, grid.stride))[:, :, : grid.cols]
    for dropped in ([False] * 3, [True] * 3, [True, False, True]) if guided else ([False] * 3,):
        prompt = encode_dropped(backbone, PROMPTS, dropped, grid)
        h, e = teacher_states(backbone, prompt, last.tokens, grid)
        expected = seen[[i + 3 * drop for i, drop in enumerate(dropped)]]
        torch.testing.assert_close(h, expected, atol=1e-4, rtol=1e-4)
        assert torch.equal(e, backbone.embed_codes(last.tokens))
        assert h.shape == (3, grid.rows, grid.cols, backbone.hidden_size)
    if guided:
        assert not torch.allclose(seen[:3], seen[3:], atol=1e-2)


def test_a_teacher_state_chooses_the_token_of_its_own_cell():
    backbone = FakeBackbone()
    session = DecodingSession(backbone, PROMPTS, [1, 2, 3], SamplingConfig())
    *_, last = decode(session, DecodeConfig("ar", rule="greedy"))
    prompt = encode_dropped(backbone, PROMPTS, [False] * 3, session.grid)
    h, _ = teacher_states(backbone, prompt, last.tokens, session.grid)
    assert torch.equal(backbone.logits(h).argmax(-1), last.tokens)


def test_pairs_lie_inside_the_grid():
    h = torch.arange(5.0)[:, None] * 10 + torch.arange(6.0)  # h[y, x] = 10 y + x
    h = h[None, :, :, None].expand(1, 5, 6, 32)
    heads = fresh_heads()
    for name, predicted, target, true in pairs(heads, h, h):  # fresh heads copy: predicted is the source
        step = int(name[1:]) * (1 if name[0] == "h" else 10)
        assert predicted.shape == (1, *((5, 6 - step) if name[0] == "h" else (5 - step // 10, 6)), 32)
        torch.testing.assert_close(target - predicted, torch.full_like(target, step))
        assert torch.equal(target, true)


def test_cross_entropy_is_added_when_asked_for():
    backbone = FakeBackbone()
    torch.manual_seed(0)
    h, e = torch.randn(2, 2, 5, 6, 32)
    heads = fresh_heads()
    plain = HeadLosses(heads, backbone)(h, e)
    added = HeadLosses(heads, backbone, ce_weight=0.5)(h, e) - plain
    p, q = backbone.logits(h[:, 1:]).softmax(-1), backbone.logits(h[:, :-1]).log_softmax(-1)
    torch.testing.assert_close(added[3], -0.5 * (p * q).sum(-1).mean())


@pytest.mark.parametrize("space", ["pre+e", "post+e", "e"])
def test_cross_entropy_judges_what_decoding_sees(space):
    """The distribution of the draft itself, in every space and at every scale."""
    backbone = FakeBackbone()
    torch.manual_seed(0)
    h, e = 60 * torch.randn(2, 5, 6, 32), torch.randn(2, 5, 6, 32) / 60
    heads = HeadSet(32, "none", 1, 1, space=space)
    heads.state_scale.fill_(64)
    heads.token_scale.fill_(1 / 64)
    added = HeadLosses(heads, backbone, ce_weight=1.0)(h, e) - HeadLosses(heads, backbone)(h, e)
    q = heads.logits(backbone, heads.draft_right(1, h[:, :, :-1], e[:, :, :-1])).log_softmax(-1)
    p = backbone.logits(h[:, :, 1:]).softmax(-1)
    torch.testing.assert_close(added[0], -(p * q).sum(-1).mean(), atol=1e-3, rtol=1e-3)


# ----------------------------------------------------------------------------------------------- batches


def test_batches_visit_every_picture_once_an_epoch():
    config = HeadsConfig(batch=4, seed=3)
    batches = Batches(np.arange(10), config)
    seen = [picture for i in range(5) for picture in batches(i)[0]]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]


def test_dropped_prompts_depend_on_seed_epoch_and_picture_alone():
    def drops(batch, seed=0):
        batches = Batches(np.arange(500), HeadsConfig(batch=batch, caption_drop=0.1, seed=seed))
        rows = {i: batches(i) for i in reversed(range(1000 // batch))}
        return [row for i in sorted(rows) for row in zip(*rows[i], strict=True)]  # two epochs

    assert drops(4) == drops(10)
    dropped = [sum(drop for _, drop in drops(4)[part]) for part in (slice(500), slice(500, 1000))]
    assert all(25 < count < 75 for count in dropped)
    assert {row for row in drops(4)[:500] if row[1]} != {row for row in drops(4)[500:] if row[1]}
    assert {row for row in drops(4) if row[1]} != {row for row in drops(4, seed=1) if row[1]}


# ------------------------------------------------------------------------------------------------ corpus


def test_corpus_resumes_and_grows(tmp_path, accelerator, monkeypatch):
    backbone = FakeBackbone()
    draw_corpus(backbone, CAPTIONS, tmp_path, accelerator=accelerator, batch=2)
    whole = load_corpus(tmp_path, backbone.fingerprint)
    assert whole.prompts == CAPTIONS and whole.tokens.dtype == torch.int32 and whole.tokens.shape == (5, 5, 6)
    assert whole.grid == backbone.grid() and whole.decoder == "ar" and whole.sampling == backbone.defaults
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 3
    times = [path.stat().st_mtime_ns for path in paths]
    paths[1].unlink()

    draw_corpus(backbone, CAPTIONS, tmp_path, accelerator=accelerator, batch=2)
    again = load_corpus(tmp_path, backbone.fingerprint)
    assert again.prompts == CAPTIONS and torch.equal(again.tokens, whole.tokens)
    assert [path.stat().st_mtime_ns == time for path, time in zip(paths, times, strict=True)] == [True, False, True]

    draw_corpus(backbone, [*CAPTIONS, "a fox"], tmp_path, accelerator=accelerator, batch=2)  # completes the last shard
    grown = load_corpus(tmp_path, backbone.fingerprint)
    assert len(grown) == 6 and torch.equal(grown.tokens[:5], whole.tokens)
    monkeypatch.setattr(backbone, "forward", None)  # nothing is missing, nothing is drawn
    draw_corpus(backbone, CAPTIONS, tmp_path, accelerator=accelerator, batch=2)
    assert load_corpus(tmp_path, backbone.fingerprint, 3).prompts == CAPTIONS[:3]


def test_interrupted_corpus_keeps_its_shards(tmp_path, accelerator, monkeypatch):
    backbone, forward, passes = FakeBackbone(), FakeBackbone.forward, []

    def interrupt(*args):
        passes.append(1)
        if len(passes) > backbone.grid().size + 5:
            raise KeyboardInterrupt
        return forward(*args)

    monkeypatch.setattr(FakeBackbone, "forward", interrupt)
    with pytest.raises(SystemExit, match="keeps the finished shards"):
        draw_corpus(backbone, CAPTIONS, tmp_path, accelerator=accelerator, batch=2)
    assert len(load_corpus(tmp_path, backbone.fingerprint)) == 2


def test_pictures_depend_neither_on_batch_size_nor_on_lossless_decoding(tmp_path, accelerator):
    backbone, drawn = FakeBackbone(), []
    for folder, batch, config in (("a", 1, None), ("b", 3, None), ("c", 5, DecodeConfig("lossless", window=7))):
        draw_corpus(backbone, CAPTIONS, tmp_path / folder, accelerator=accelerator, batch=batch, seed=9, config=config)
        drawn.append(load_corpus(tmp_path / folder, backbone.fingerprint).tokens)
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])
    assert len({tuple(picture.flatten().tolist()) for picture in drawn[0]}) == 5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(prompts=["a fox", *CAPTIONS[1:]]), "prompts"),
        (dict(seed=1), "seeds"),
        (dict(batch=3), "batch"),
        (dict(sampling=SamplingConfig(cfg=2.0)), "sampling"),
        (dict(config=DecodeConfig("ssd", Schedule(b=1))), "decoder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_corpus_is_refused(tmp_path, accelerator, change, named):
    backbone = FakeBackbone()
    draw_corpus(backbone, CAPTIONS, tmp_path, accelerator=accelerator, batch=2)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    settings = dict(prompts=CAPTIONS, batch=2) | change
    with pytest.raises(CorpusError, match=named):
        draw_corpus(backbone, folder=tmp_path, accelerator=accelerator, **settings)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}


def test_corpora_can_be_joined_if_they_are_alike(tmp_path, accelerator):
    backbone, parts = FakeBackbone(), []
    for name, config, cfg in (("ar", DecodeConfig("ar"), 1.0), ("ssd", DecodeConfig(), 1.0), ("cfg", None, 2.0)):
        options = dict(accelerator=accelerator, config=config, sampling=SamplingConfig(cfg=cfg))
        draw_corpus(backbone, CAPTIONS[len(parts) : 3], tmp_path / name, **options)
        parts.append(load_corpus(tmp_path / name, backbone.fingerprint))
    joined = parts[0].joined(parts[1])
    assert joined.prompts == [*CAPTIONS[:3], *CAPTIONS[1:3]]
    assert torch.equal(joined.tokens, torch.cat((parts[0].tokens, parts[1].tokens)))
    assert joined.decoder == f"ar, then {DecodeConfig()}"
    with pytest.raises(CorpusError, match="one grid and one sampling"):
        joined.joined(parts[2])


def test_corpus_of_another_backbone_is_refused(tmp_path, accelerator):
    backbone, other = FakeBackbone(), FakeBackbone()
    other.fingerprint = "other"
    draw_corpus(backbone, CAPTIONS, tmp_path, accelerator=accelerator)
    with pytest.raises(CorpusError, match=f"fingerprint is {backbone.fingerprint}, expected other"):
        draw_corpus(other, CAPTIONS, tmp_path, accelerator=accelerator)
    with pytest.raises(CorpusError, match="the loaded one is other"):
        load_corpus(tmp_path, "other")


def test_missing_short_and_damaged_corpora_are_named(tmp_path, accelerator):
    backbone = FakeBackbone()
    with pytest.raises(CorpusError, match="There is no corpus"):
        load_corpus(tmp_path / "none", backbone.fingerprint)
    draw_corpus(backbone, CAPTIONS, tmp_path, accelerator=accelerator)
    with pytest.raises(CorpusError, match="has 5 pictures, 9 are needed"):
        load_corpus(tmp_path, backbone.fingerprint, 9)
    (tmp_path / "shard-000001.safetensors").write_bytes(b"half")
    with pytest.raises(CorpusError, match="is damaged"):
        load_corpus(tmp_path, backbone.fingerprint)
    with pytest.raises(ValueError, match="at least one prompt"):
        draw_corpus(backbone, [], tmp_path, accelerator=accelerator)


# ---------------------------------------------------------------------------------------------- training

SMALL = HeadsConfig(k_h=3, k_v=2, expansion=1.0, steps=12, batch=4, lr=3e-3, warmup=2, log_every=1)


def test_training_beats_the_identity_draft(tmp_path, corpus, accelerator, capsys):
    backbone = FakeBackbone()
    config = HeadsConfig(k_h=2, k_v=2, expansion=1.0, steps=150, batch=8, lr=3e-3, warmup=5, log_every=10)
    out = tmp_path / "heads.safetensors"
    heads = train_heads(backbone, corpus, config, accelerator=accelerator, work=tmp_path, out=out)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    start, end = log[0], log[-2]  # the last line is the evaluation
    for name in ("h1", "h2", "v1", "v2"):
        assert end[name] < 0.7 * start[name]
    with safe_open(out, framework="pt") as file:
        story = json.loads(file.metadata()["training"])
    assert story["steps"] == 150 and story["epochs"] == round(150 * 8 / 23, 3)
    assert story["pictures"] == 23 and story["held_out"] == 1 and story["prompts"] == 5
    for row in story["heads"].values():
        assert row["loss"] < 0.8 * row["identity_loss"]
    on_training = evaluate_heads(heads, backbone, corpus, np.arange(24))
    assert all(row["agreement"] > row["identity_agreement"] for row in on_training.values())
    assert "top-1 agreement" in capsys.readouterr().out

    loaded = load_heads(out, backbone.fingerprint)
    assert (loaded.k_h, loaded.k_v, loaded.expansion) == (2, 2, 1.0)
    session = DecodingSession(backbone, ["a"], [0])
    *_, last = decode(session, DecodeConfig(schedule=Schedule(k_h=2, k_v=2)), heads)
    assert last.progress == 1


@pytest.mark.parametrize("space", SPACES)
def test_every_space_trains_and_decodes(space, tmp_path, corpus, accelerator):
    """Table 19: heads of any space go from the trainer through their file into every kind of decoder."""
    backbone, out = FakeBackbone(), tmp_path / "heads.safetensors"
    config = replace(SMALL, space=space, steps=40, lr=1e-2)
    trained_now = train_heads(backbone, corpus, config, accelerator=accelerator, work=tmp_path, out=out)
    heads = load_heads(out, backbone.fingerprint)
    assert heads.space == space
    with safe_open(out, framework="pt") as file:
        story = json.loads(file.metadata()["training"])
    assert story["space"] == space
    for name in ("h1", "v1"):
        assert story["heads"][name]["loss"] < story["heads"][name]["identity_loss"]
    for value, other in zip(heads.state_dict().values(), trained_now.state_dict().values(), strict=True):
        assert torch.equal(value, other)
    reference, _ = decoded(backbone, DecodeConfig("ar"), None)
    for decoder in ("ssd", "lossless", "mtp"):
        last, _ = decoded(backbone, DecodeConfig(decoder, Schedule(b=1, k_h=3, k_v=2), window=4), heads)
        assert last.progress == 1
        if decoder == "lossless":  # whatever the drafts
            assert torch.equal(last.tokens, reference.tokens)


def decoded(backbone, config, heads):
    session = DecodingSession(backbone, ["a", "bc"], [0, 1], SamplingConfig(cfg=2.0), lookahead=config.lookahead)
    *_, last = decode(session, config, heads)
    return last, session


def test_scales_bring_states_and_embeddings_to_unit_size(corpus):
    backbone = FakeBackbone()
    pictures = np.arange(8)
    for space in SPACES:
        for scaled in (True, False):
            config = replace(SMALL, space=space, scaled=scaled)
            heads = untrained_heads(backbone, corpus, pictures, config)
            prompt = backbone.encode_prompts(corpus.prompts[:8], None, corpus.grid)
            h, e = teacher_states(backbone, prompt, corpus.tokens[:8], corpus.grid)
            sizes = [float(part.square().mean().sqrt()) for part in heads.inputs(h, e)]
            if scaled:
                assert all(0.5**0.51 < size < 2**0.51 for size in sizes)
            else:
                assert float(heads.state_scale) == float(heads.token_scale) == 1
            if "post" in space:
                torch.testing.assert_close(heads.final_norm, backbone.transformer.norm.weight)


def test_resumed_run_ends_with_the_same_weights(tmp_path, corpus, accelerator):
    def run(folder, on_step=None):
        train_heads(FakeBackbone(), corpus, SMALL, accelerator=accelerator, work=tmp_path / folder, on_step=on_step)
        return trained(tmp_path / folder)

    def stop(step, _):
        if step == 5:
            raise KeyboardInterrupt

    whole = run("whole")
    with pytest.raises(SystemExit, match="Stopped at step 5"):
        run("parts", stop)
    resumed = run("parts")
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())

    other = replace(SMALL, lr=1e-3)
    with pytest.raises(ValueError, match="belongs to another run"):
        train_heads(FakeBackbone(), corpus, other, accelerator=accelerator, work=tmp_path / "whole")


def test_heads_learn_independently(tmp_path, corpus, accelerator):
    """A set with fewer heads ends with the same ones: no clipping, no loss couples them."""
    for folder, config in (("a", SMALL), ("b", replace(SMALL, k_v=1))):
        train_heads(FakeBackbone(), corpus, config, accelerator=accelerator, work=tmp_path / folder)
    whole, fewer = trained(tmp_path / "a"), trained(tmp_path / "b")
    horizontal = [name for name in fewer if "horizontal" in name]
    assert len(horizontal) == 3 * 5
    assert all(torch.equal(fewer[name], whole[name]) for name in horizontal)


def test_offsets_beyond_the_grid_are_refused(tmp_path, corpus, accelerator):
    for config in (HeadsConfig(k_h=6), HeadsConfig(k_v=5)):
        with pytest.raises(ValueError, match="lower them"):
            train_heads(FakeBackbone(), corpus, config, accelerator=accelerator, work=tmp_path)


# ------------------------------------------------------------------------------------------ command line


def test_prompts_file_and_builtin_captions(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffein Fuchs\r\n\r\n  二匹の猫 \n".encode())
    args = cli.build_parser().parse_args(["--prompts", str(path), "--pictures", "3"])
    assert cli.choose_prompts(args) == ["ein Fuchs", "二匹の猫", "ein Fuchs"]
    args = cli.build_parser().parse_args(["--pictures", "20"])
    assert len(set(cli.choose_prompts(args))) > 15
    args = cli.build_parser().parse_args(["--backbone", "other"])
    with pytest.raises(ValueError, match="--prompts"):
        cli.choose_prompts(args)


def test_errors_of_the_command_line_are_one_line(tmp_path, accelerator, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--device", "cpu", "--prompts", str(tmp_path / "none.txt")])
    assert stopped.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_two_processes_share_the_work(tmp_path, accelerator):
    """`accelerate launch` on two CPU processes: a split corpus, one heads file, one process's weights."""
    out, work, tests = tmp_path / "heads.safetensors", tmp_path / "work", Path(__file__).parent
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command += [str(tests / "launch_training.py"), "--device", "cpu", "--pictures", "12", "--draw-batch", "3"]
    command += ["--k-h", "2", "--k-v", "1", "--expansion", "1", "--epochs", "2", "--batch", "2", "--lr", "0.003"]
    command += ["--log-every", "1", "--work", str(work), "--out", str(out)]
    path = os.pathsep.join([str(tests.parent), str(tests), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}

    def launch():
        return subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=120, check=False)

    done = launch()
    assert done.returncode == 0, done.stderr

    drawn = sorted(line for line in done.stdout.splitlines() if " drew " in line)
    assert drawn == [f"process {n % 2} drew shard-{n:06d}.safetensors" for n in (0, 2, 1, 3)]
    backbone = FakeBackbone()
    corpus = load_corpus(work / "corpus", backbone.fingerprint)
    assert corpus.prompts == cli.scene_captions(12)
    with safe_open(out, framework="pt") as file:
        story = json.loads(file.metadata()["training"])
    assert story["processes"] == 2 and story["steps"] == 6  # 2 epochs of 11 pictures, 2 * 2 a step

    config = HeadsConfig(k_h=2, k_v=1, expansion=1.0, epochs=2, batch=4, lr=3e-3)  # the same pictures a step
    train_heads(backbone, corpus, config, accelerator=accelerator, work=tmp_path / "alone")
    load_heads(out, backbone.fingerprint)
    shared, expected = trained(work), trained(tmp_path / "alone")
    for name, value in expected.items():
        torch.testing.assert_close(shared[name], value, atol=1e-4, rtol=0)
    out.unlink()
    assert launch().returncode == 0  # every process finds its shards and the checkpoint
    assert out.is_file()
