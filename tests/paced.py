"""A model for tests of the page: the builtin model's words and size, random weights, every pass at a set pace."""

import time

from fakes import FakeBackbone, random_heads

from ssd_core.app.race import palette
from ssd_core.app.studio import Model, Studio
from ssd_core.backbones import BuiltinBackbone


class PacedBackbone(FakeBackbone):
    """24 x 24 cells; a pass takes `pace` seconds and hardly any work, so that races last the same everywhere."""

    encode_prompts = BuiltinBackbone.encode_prompts

    def __init__(self, pace: float):
        super().__init__(24, 24, eol=False)
        self.pace = pace

    def forward(self, *args):
        time.sleep(self.pace)
        return super().forward(*args)


def paced_studio(pace: float) -> Studio:
    """A studio that has such a model, with heads that are mostly wrong."""
    backbone, studio = PacedBackbone(pace), Studio()
    studio.current = Model(backbone, random_heads(backbone, k_h=5), palette(backbone), negative=False)
    return studio
