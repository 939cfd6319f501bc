"""ComfyUI-SSD as a ComfyUI node pack: the nodes are in nodes/, their browser side in web/."""

WEB_DIRECTORY = "./web"

if __package__:  # pytest imports this file as a module of its own, without a package around it
    from .nodes import comfy_entrypoint

    __all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]
