"""`python -m ssd_core.training` for the random backbone of the tests; `test_training` launches it on two processes."""

import os
import sys

from fakes import FakeBackbone

import ssd_core.training.__main__ as training
from ssd_core.training import corpus

draw = corpus._draw


def draw_and_tell(backbone, shard, *rest):
    draw(backbone, shard, *rest)
    print(f"process {os.environ['RANK']} drew {shard.path.name}\n", end="", flush=True)  # one write a line


corpus._draw = draw_and_tell
training.load_backbone = lambda name, **_: FakeBackbone()
training.main(sys.argv[1:])
