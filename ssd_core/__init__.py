"""Fast decoding for autoregressive image models: AR, Spatially Speculative Decoding, lossless decoding.

    backbone = load_backbone("builtin")
    result = generate(backbone, ["a fox left of a rocket"], seeds=[7], heads=backbone.shipped_heads())
    rgb = backbone.decode_image(result.tokens)  # float [1, 192, 192, 3] in 0..1

For live previews iterate over `decode(DecodingSession(...), config)` instead: it yields an event per pass.
"""

from .backbones import Backbone, CheckpointError, load_backbone
from .decoders import DecodeConfig, decode
from .generate import Result, generate
from .grid import TokenGrid
from .heads import HeadsError, HeadSet, load_heads, save_heads
from .sampling import SamplingConfig
from .schedule import PRESETS, Preset, Schedule
from .session import DecodeEvent, DecodingSession
from .speeds import SPEEDS, at_speed

__all__ = [
    "PRESETS",
    "SPEEDS",
    "Backbone",
    "CheckpointError",
    "DecodeConfig",
    "DecodeEvent",
    "DecodingSession",
    "HeadSet",
    "HeadsError",
    "Preset",
    "Result",
    "SamplingConfig",
    "Schedule",
    "TokenGrid",
    "at_speed",
    "decode",
    "generate",
    "load_backbone",
    "load_heads",
    "save_heads",
]
