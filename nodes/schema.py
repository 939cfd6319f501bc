"""Building blocks of the nodes' schemas: types, inputs that several nodes share, niceties of newer ComfyUIs."""

from collections.abc import Iterable
from dataclasses import Field

from comfy_api.latest import io

from ..ssd_core.correction import ACCEPT_REJECT, RULES
from ..ssd_core.decoders import DECODERS
from ..ssd_core.sampling import MAX_SEED
from ..ssd_core.schedule import COMMITS, OWN, Schedule
from . import settings, watching
from .text import NodeText, choices

CATEGORY = "SSD"
BackboneType = io.Custom("SSD_BACKBONE")
HeadsType = io.Custom("SSD_HEADS")
ScheduleType = io.Custom("SSD_SCHEDULE")


def schema(text: NodeText, inputs: list, outputs: list, *, aliases: list[str] | None = None, **options) -> io.Schema:
    """A node's schema with its texts; search aliases where ComfyUI knows them."""
    if aliases and "search_aliases" in io.Schema.__dataclass_fields__:
        options["search_aliases"] = aliases
    return io.Schema(
        node_id=text.node_id,
        display_name=text.title,
        category=CATEGORY,
        description=text.description,
        inputs=inputs,
        outputs=outputs,
        **options,
    )


def advanced(given: io.Input) -> io.Input:
    """An input that newer ComfyUIs fold away at first; older ones ignore the mark."""
    return _marked(given, advanced=True)


def _marked(given: io.Input, **marks) -> io.Input:
    """Marks that the browser sees; older ComfyUIs do not take them as arguments of every input."""
    given.extra_dict = {**(given.extra_dict or {}), **marks}
    return given


def peer_knob(text: NodeText, field: Field, decoders: list[str]) -> io.Input:
    """A knob of some of the peers; the browser hides it while another one is chosen."""
    name, default = field.name, field.default
    if "choices" in field.metadata:
        given = io.Combo.Input(name, options=list(field.metadata["choices"]), default=default, **text.input(name))
    elif field.type is bool:
        given = io.Boolean.Input(name, default=default, **text.input(name))
    elif field.type is float:
        low, high = settings.PEER_RANGES[name]
        given = io.Float.Input(name, default=default, min=low, max=high, step=0.01, **text.input(name))
    else:
        low, high = settings.PEER_RANGES[name]
        given = io.Int.Input(name, default=0 if name == "window" else default, min=low, max=high, **text.input(name))
    return _marked(given, decoders=decoders)


def columns(text: NodeText, decoders: list[str]) -> io.Input:
    """k_h of those peers that draft with horizontal heads."""
    given = io.Int.Input("k_h", default=Schedule.k_h, min=1, max=settings.MAX_COLUMNS, **text.input("k_h"))
    return _marked(given, decoders=decoders)


def refusal(node: type[io.ComfyNode], **values: str | None) -> str | None:
    """Why one of some choices cannot be, or None; to be called by the node's `validate_inputs`.

    Not every ComfyUI compares the choices of V3 nodes with their options. A value of None comes from a
    link and is not known yet.
    """
    options = {given.id: given.options for given in node.define_schema().inputs if isinstance(given, io.Combo.Input)}
    for name, value in values.items():
        if value is not None and value not in options[name]:
            return f'{name} is "{value}", but the choices are {", ".join(options[name])}.'
    return None


def backbone(text: NodeText) -> io.Input:
    """The model that a node works with."""
    return BackboneType.Input("backbone", **text.input("backbone"))


def heads(text: NodeText) -> io.Input:
    """Drafting heads, which a node can do without."""
    return HeadsType.Input("heads", optional=True, **text.input("heads"))


def schedule(text: NodeText) -> io.Input:
    """A schedule that overrules the node's own knobs."""
    return ScheduleType.Input("schedule", optional=True, **text.input("schedule"))


def prompt(text: NodeText, default: str) -> io.Input:
    """What to draw."""
    return io.String.Input("prompt", multiline=True, dynamic_prompts=True, default=default, **text.input("prompt"))


def negative(text: NodeText) -> io.Input:
    """What not to draw."""
    return advanced(
        io.String.Input(
            "negative_prompt", multiline=True, dynamic_prompts=True, default="", **text.input("negative_prompt")
        )
    )


def seed(text: NodeText, default: int = 7) -> io.Input:
    """A seed that the browser can count up or draw after each run."""
    return io.Int.Input("seed", default=default, min=0, max=MAX_SEED, control_after_generate=True, **text.input("seed"))


def rounds(text: NodeText) -> io.Input:
    """r."""
    return io.Int.Input("r", default=2, min=0, max=settings.MAX_ROUNDS, **text.input("r"))


def decoder(
    text: NodeText, name: str, question: str, default: str, advice: str, among: Iterable[str] = DECODERS
) -> io.Input:
    """A choice among the decoders."""
    options = {each: DECODERS[each] for each in among}
    texts = {"tooltip": choices(question, options, advice), **text.input(name)}
    return io.Combo.Input(name, options=list(options), default=default, **texts)


def commits(text: NodeText) -> io.Input:
    """When finished rows are stored."""
    texts = {"tooltip": choices("When finished rows are committed.", COMMITS, "Try own."), **text.input("commits")}
    return advanced(io.Combo.Input("commits", options=list(COMMITS), default=OWN, **texts))


def settle(text: NodeText) -> io.Input:
    """Whether a schedule ends what a round has kept; optional, so that workflows from before it still run."""
    return advanced(io.Boolean.Input("settle", default=False, optional=True, **text.input("settle")))


def rule(text: NodeText, default: str = ACCEPT_REJECT, advice: str = "Try accept-reject.") -> io.Input:
    """A choice among the update rules."""
    texts = {"tooltip": choices("How a verify round corrects tokens.", RULES, advice), **text.input("rule")}
    return advanced(io.Combo.Input("rule", options=list(RULES), default=default, **texts))


def sampling(text: NodeText) -> list[io.Input]:
    """Guidance, temperature, top-k and top-p, where 0 stands for the model's own."""
    return [
        io.Float.Input("cfg", default=0.0, min=0.0, max=30.0, step=0.1, **text.input("cfg")),
        advanced(io.Float.Input("temperature", default=0.0, min=0.0, max=10.0, step=0.05, **text.input("temperature"))),
        advanced(io.Int.Input("top_k", default=0, min=0, max=1_000_000, **text.input("top_k"))),
        advanced(io.Float.Input("top_p", default=0.0, min=0.0, max=1.0, step=0.01, **text.input("top_p"))),
    ]


def picture(text: NodeText) -> list[io.Input]:
    """Size, batch and preview."""
    return [
        io.Int.Input("width", default=0, min=0, max=4096, step=8, **text.input("width")),
        io.Int.Input("height", default=0, min=0, max=4096, step=8, **text.input("height")),
        io.Int.Input("batch_size", default=1, min=1, max=settings.MAX_BATCH, **text.input("batch_size")),
        advanced(
            io.Combo.Input("preview", options=list(watching.PREVIEWS), default=watching.PIXELS, **text.input("preview"))
        ),
        advanced(io.Int.Input("preview_every", default=1, min=1, max=64, **text.input("preview_every"))),
    ]
