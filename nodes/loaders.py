"""LoadBackbone, LoadSSDHeads and SaveSSDHeads."""

from comfy_api.latest import io

from ..ssd_core.heads import load_heads, save_heads
from . import folders
from .managed import ManagedBackbone, ManagedHeads
from .schema import BackboneType, HeadsType, advanced, backbone, refusal, schema
from .text import NodeText

SHIPPED, NONE = "shipped", "none"
BITS = {"none": None, "8 bits": 8, "4 bits": 4}


class LoadBackbone(io.ComfyNode):
    """Chooses a backbone; cheap, since weights are read when somebody needs them."""

    @classmethod
    def define_schema(cls):
        text = NodeText("LoadBackbone")
        names = [folders.BUILTIN, *folders.backbones()]
        precisions = ["auto", "float32", "bfloat16", "float16"]
        return schema(
            text,
            [
                io.Combo.Input("name", options=names, default=folders.BUILTIN, **text.input("name")),
                advanced(io.Combo.Input("dtype", options=precisions, default="auto", **text.input("dtype"))),
                advanced(
                    io.Combo.Input("device", options=["default", "cpu"], default="default", **text.input("device"))
                ),
                advanced(
                    io.Combo.Input("quantization", options=list(BITS), default="none", **text.input("quantization"))
                ),
            ],
            [BackboneType.Output("backbone", **text.output(0))],
            aliases=["janus", "emu3", "lumina", "mgpt", "autoregressive"],
        )

    @classmethod
    def validate_inputs(cls, name=None, dtype=None, device=None, quantization=None):
        refused = refusal(cls, name=name, dtype=dtype, device=device, quantization=quantization)
        if not refused and name == folders.BUILTIN and BITS.get(quantization):
            return "The builtin model is small and has no packed weights: set quantization to none."
        return refused or True

    @classmethod
    def fingerprint_inputs(cls, name, **_):
        folder = folders.backbones().get(name)
        return folders.stamp(folder) if folder else name

    @classmethod
    def execute(cls, name, dtype, device, quantization) -> io.NodeOutput:
        return io.NodeOutput(ManagedBackbone(name, folders.backbone_folder(name), dtype, device, BITS[quantization]))


class LoadSSDHeads(io.ComfyNode):
    """Loads drafting heads for a backbone."""

    @classmethod
    def define_schema(cls):
        text = NodeText("LoadSSDHeads")
        names = [SHIPPED, NONE, *folders.heads_files()]
        return schema(
            text,
            [backbone(text), io.Combo.Input("heads", options=names, default=SHIPPED, **text.input("heads"))],
            [HeadsType.Output("drafts", **text.output(0))],
            aliases=["drafting heads", "speculative"],
        )

    @classmethod
    def validate_inputs(cls, heads=None):
        return refusal(cls, heads=heads) or True

    @classmethod
    def fingerprint_inputs(cls, heads, **_):
        return heads if heads in (SHIPPED, NONE) else folders.stamp(folders.heads_file(heads))

    @classmethod
    def execute(cls, backbone: ManagedBackbone, heads) -> io.NodeOutput:
        loaded = backbone.load()
        if heads == NONE:
            return io.NodeOutput(ManagedHeads(None, backbone))
        if heads == SHIPPED:
            found = loaded.shipped_heads()
            if found is None:
                raise ValueError(
                    f"No heads come with {backbone.name}: choose none for training-free drafts, or train some."
                )
        else:
            found = load_heads(folders.heads_file(heads), loaded.fingerprint, device=loaded.device, dtype=loaded.dtype)
        return io.NodeOutput(ManagedHeads(found, backbone))


class SaveSSDHeads(io.ComfyNode):
    """Writes heads to the folder where LoadSSDHeads finds them."""

    @classmethod
    def define_schema(cls):
        text = NodeText("SaveSSDHeads")
        return schema(
            text,
            [
                HeadsType.Input("heads", **text.input("heads")),
                io.String.Input("name", default="my heads", **text.input("name")),
            ],
            [io.String.Output("path", **text.output(0))],
            is_output_node=True,
        )

    @classmethod
    def validate_inputs(cls, name=None):
        try:
            if name is not None:
                folders.new_heads_file(name)
        except ValueError as error:
            return str(error)
        return True

    @classmethod
    def execute(cls, heads: ManagedHeads, name) -> io.NodeOutput:
        if heads.heads is None:
            raise ValueError("Training-free drafts have no heads to save: connect trained ones.")
        path = str(save_heads(heads.heads, folders.new_heads_file(name), heads.story))
        return io.NodeOutput(path, ui={"text": [path]})


NODES = [LoadBackbone, LoadSSDHeads, SaveSSDHeads]
