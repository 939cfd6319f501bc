"""The ComfyUI nodes. Each is a thin consumer of ssd_core; only the modules that need ComfyUI import it.

text.py, settings.py and watching.py work without ComfyUI; folders.py, managed.py and host.py bind to its
folders, its memory manager and its progress bar; the nodes are in loaders.py, samplers.py, comparing.py
and training.py, and routes.py answers the browser.
"""


def comfy_entrypoint():
    """What ComfyUI calls to get the nodes of this pack."""
    from comfy_api.latest import ComfyExtension

    from . import comparing, folders, loaders, routes, samplers, training

    class SSDExtension(ComfyExtension):
        async def get_node_list(self):
            return [*loaders.NODES, *samplers.NODES, *comparing.NODES, *training.NODES]

    folders.register()
    routes.register()
    return SSDExtension()
