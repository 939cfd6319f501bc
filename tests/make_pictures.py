"""Makes the thumbnails of the workflows and the README's screenshot of ComfyUI: python tests/make_pictures.py

Workflows that run with the builtin model get what they draw; the others, whose checkpoints have gigabytes,
get the picture of their graph. Needs ComfyUI (get_comfyui.py), Chromium and playwright.
"""

import io
import sys
import tempfile
from pathlib import Path

import comfyui_browser as browser
import comfyui_host as host
from PIL import Image

SCREENSHOT = host.ROOT / ".github" / "images" / "comfyui.png"
SHOWN = {"1-text-to-image": "SaveImage", "2-ar-against-ssd": "SaveImage", "3-speed-sweep": "SaveImage"}
SHOWN["7-train-heads"] = "PreviewImage"
THUMBNAIL = 512, 320
BACKGROUND = (24, 24, 28)


def main() -> None:
    """Runs the workflows once and writes all pictures."""
    if host.missing():
        sys.exit(host.missing())
    with tempfile.TemporaryDirectory() as folder:
        server = host.Server(Path(folder) / "base")
        try:
            for path in sorted((host.ROOT / "workflows").glob("*.json")):
                picture = drawn(server, path.stem) if path.stem in SHOWN else graph(server, path.stem)
                thumbnail(picture).save(path.with_suffix(".jpg"), quality=85, optimize=True)
                print(f"wrote {path.with_suffix('.jpg')}")
            screenshot(server).save(SCREENSHOT, optimize=True)
            print(f"wrote {SCREENSHOT}")
        finally:
            server.stop()


def drawn(server: host.Server, name: str) -> Image.Image:
    """The picture that a workflow draws."""
    prompt = host.api_form(host.load_workflow(name), server.get("/object_info"))
    client = host.Client(server)
    run = client.run(prompt)
    client.close()
    if run.error:
        sys.exit(f"{name}: {run.error}")
    node = next(id for id, node in prompt.items() if node["class_type"] == SHOWN[name])
    image = run.output(node)["images"][0]
    return Image.open(server.base / image["type"] / image["filename"]).convert("RGB")


def graph(server: host.Server, name: str) -> Image.Image:
    """The graph of a workflow."""
    with browser.frontend(server) as (page, _):
        browser.open_workflow(page, host.load_workflow(name))
        page.wait_for_timeout(1000)
        return Image.open(io.BytesIO(page.screenshot())).convert("RGB").crop((90, 60, 1600, 1000))


def screenshot(server: host.Server) -> Image.Image:
    """The first workflow after a run."""
    with browser.frontend(server) as (page, _):
        browser.open_workflow(page, host.load_workflow("1-text-to-image"))
        browser.run(page)
        browser.wait_for_panel(page, "SSDSampler", "passes (planned")
        page.wait_for_timeout(1500)
        return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def thumbnail(picture: Image.Image) -> Image.Image:
    """The whole picture on a plain ground."""
    scale = min(THUMBNAIL[0] / picture.width, THUMBNAIL[1] / picture.height)
    size = round(picture.width * scale), round(picture.height * scale)
    canvas = Image.new("RGB", THUMBNAIL, BACKGROUND)
    place = (THUMBNAIL[0] - size[0]) // 2, (THUMBNAIL[1] - size[1]) // 2
    canvas.paste(picture.resize(size, Image.Resampling.LANCZOS), place)
    return canvas


if __name__ == "__main__":
    main()
