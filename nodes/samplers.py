"""SSDSchedule, PeerDecoder, SSDSampler and ARSampler."""

from functools import partial

from comfy_api.latest import io

from ..ssd_core.correction import ACCEPT_REJECT, GREEDY
from ..ssd_core.decoders import OPTIONS, SCHEDULED, DecodeConfig, option_fields
from ..ssd_core.schedule import PRESETS
from ..ssd_core.speeds import SPEEDS
from . import schema as s
from . import settings
from .host import Viewer
from .managed import ManagedBackbone, ManagedHeads
from .text import NodeText

PROMPT = "a fox left of a rocket, at night"


class SSDSchedule(io.ComfyNode):
    """A stop of the speed scale, or a family's own settings, as one connection."""

    @classmethod
    def define_schema(cls):
        text = NodeText("SSDSchedule")
        presets = [settings.SLIDER, *PRESETS]
        return s.schema(
            text,
            [
                s.backbone(text),
                io.Combo.Input("preset", options=presets, default=settings.SLIDER, **text.input("preset")),
                io.Int.Input(
                    "speed",
                    default=SPEEDS.index("balanced"),
                    min=0,
                    max=len(SPEEDS) - 1,
                    display_mode=io.NumberDisplay.slider,
                    **text.input("speed"),
                ),
            ],
            [s.ScheduleType.Output("schedule", **text.output(0)), io.String.Output("summary", **text.output(1))],
            aliases=["speed"],
        )

    @classmethod
    def validate_inputs(cls, preset=None):
        return s.refusal(cls, preset=preset) or True

    @classmethod
    def execute(cls, backbone: ManagedBackbone, preset, speed) -> io.NodeOutput:
        family, grid = backbone.outline()
        config = settings.scheduled(preset, speed, family)
        return io.NodeOutput(config, f"{config}\n{settings.plan(config, grid)}")


class PeerDecoder(io.ComfyNode):
    """A decoder that SSD is compared with, and its knobs, in place of a schedule."""

    @classmethod
    def define_schema(cls):
        text = NodeText("PeerDecoder")
        with_heads = [name for name in OPTIONS if "k_h" in SCHEDULED.get(name, ())]
        return s.schema(
            text,
            [
                s.decoder(text, "decoder", "What to draw with.", "sjd", "Try zipar, then sjd.", OPTIONS),
                *(s.peer_knob(text, field, decoders) for field, decoders in option_fields().values()),
                s.columns(text, with_heads),
            ],
            [s.ScheduleType.Output("schedule", **text.output(0))],
            aliases=["mtp", "sjd", "gsd", "lantern", "zipar", "pjd", "speculative jacobi"],
        )

    @classmethod
    def validate_inputs(cls, decoder=None, drafts=None, factor=None):
        refused = s.refusal(cls, decoder=decoder, drafts=drafts)
        if not refused and factor is not None and decoder == "lantern":
            try:
                settings.peer_config(decoder, factor=factor)
            except ValueError as error:
                return str(error)
        return refused or True

    @classmethod
    def execute(cls, **knobs) -> io.NodeOutput:
        return io.NodeOutput(settings.peer_config(**knobs))


class SSDSampler(io.ComfyNode):
    """Draws pictures by any decoder, and shows how."""

    @classmethod
    def define_schema(cls):
        text = NodeText("SSDSampler")
        rounds = {"min": 0, "max": settings.MAX_ROUNDS}
        return s.schema(
            text,
            [
                s.backbone(text),
                s.prompt(text, PROMPT),
                s.negative(text),
                s.seed(text),
                s.decoder(
                    text,
                    "decoder",
                    "How the picture is decoded.",
                    "ssd",
                    "Try ssd, then lossless. Peer Decoder has the knobs of those below lossless.",
                ),
                s.rounds(text),
                io.Int.Input("k_v", default=1, min=1, max=settings.MAX_ROWS, **text.input("k_v")),
                s.advanced(io.Int.Input("b", default=5, **rounds, **text.input("b"))),
                s.advanced(io.Int.Input("i", default=4, **rounds, **text.input("i"))),
                s.advanced(io.Int.Input("k_h", default=5, min=1, max=settings.MAX_COLUMNS, **text.input("k_h"))),
                s.commits(text),
                s.rule(text),
                s.advanced(
                    io.Int.Input(
                        "window",
                        default=DecodeConfig.window,
                        min=1,
                        max=settings.MAX_WINDOW,
                        **text.input("window"),
                    )
                ),
                *s.sampling(text),
                *s.picture(text),
                s.heads(text),
                s.schedule(text),
                s.settle(text),  # the last widget: saved workflows have their values in this order
            ],
            [
                io.Image.Output("image", **text.output(0)),
                io.Mask.Output("accepted", **text.output(1)),
                io.String.Output("statistics", **text.output(2)),
            ],
            hidden=[io.Hidden.unique_id],
            aliases=["janus", "emu3", "lumina", "speculative", "lossless", "text to image"],
        )

    @classmethod
    def validate_inputs(cls, decoder=None, commits=None, rule=None, preview=None):
        return s.refusal(cls, decoder=decoder, commits=commits, rule=rule, preview=preview) or True

    @classmethod
    def execute(
        cls,
        backbone: ManagedBackbone,
        prompt,
        negative_prompt,
        seed,
        decoder,
        r,
        k_v,
        b,
        i,
        k_h,
        commits,
        rule,
        window,
        cfg,
        temperature,
        top_k,
        top_p,
        width,
        height,
        batch_size,
        preview,
        preview_every,
        heads: ManagedHeads | None = None,
        schedule: DecodeConfig | None = None,
        settle=False,
    ) -> io.NodeOutput:
        own = settings.schedule_of(r, k_v, b, i, k_h, commits, settle)
        config = settings.decode_config(schedule, decoder=decoder, schedule=own, rule=rule, window=window)
        viewer = Viewer(cls.hidden.unique_id, backbone, heads, preview, preview_every)
        drawing = viewer.draw(
            prompt,
            settings.consecutive(seed, batch_size),
            config,
            partial(settings.sampling_config, cfg=cfg, temperature=temperature, top_k=top_k, top_p=top_p),
            negative_prompt,
            width,
            height,
        )
        return io.NodeOutput(drawing.image, drawing.mask, drawing.statistics, ui={"ssd": [drawing.statistics]})


class ARSampler(io.ComfyNode):
    """Draws pictures token by token."""

    @classmethod
    def define_schema(cls):
        text = NodeText("ARSampler")
        return s.schema(
            text,
            [
                s.backbone(text),
                s.prompt(text, PROMPT),
                s.negative(text),
                s.seed(text),
                s.advanced(io.Boolean.Input("greedy", default=False, **text.input("greedy"))),
                *s.sampling(text),
                *s.picture(text),
            ],
            [io.Image.Output("image", **text.output(0)), io.String.Output("statistics", **text.output(1))],
            hidden=[io.Hidden.unique_id],
            aliases=["autoregressive", "text to image"],
        )

    @classmethod
    def validate_inputs(cls, preview=None):
        return s.refusal(cls, preview=preview) or True

    @classmethod
    def execute(
        cls,
        backbone: ManagedBackbone,
        prompt,
        negative_prompt,
        seed,
        greedy,
        cfg,
        temperature,
        top_k,
        top_p,
        width,
        height,
        batch_size,
        preview,
        preview_every,
    ) -> io.NodeOutput:
        config = DecodeConfig("ar", rule=GREEDY if greedy else ACCEPT_REJECT)
        drawing = Viewer(cls.hidden.unique_id, backbone, None, preview, preview_every).draw(
            prompt,
            settings.consecutive(seed, batch_size),
            config,
            partial(settings.sampling_config, cfg=cfg, temperature=temperature, top_k=top_k, top_p=top_p),
            negative_prompt,
            width,
            height,
        )
        return io.NodeOutput(drawing.image, drawing.statistics, ui={"ssd": [drawing.statistics]})


NODES = [SSDSchedule, PeerDecoder, SSDSampler, ARSampler]
