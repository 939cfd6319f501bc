"""Makes the thumbnails of the workflows and the README's screenshot of ComfyUI: python tests/make_pictures.py

The first three workflows get what they draw; the others, which need gigabytes or many minutes, the
picture of their graph. Needs ComfyUI (get_comfyui.py), Chromium and playwright.
"""

import io
import json
import sys
import tempfile
from pathlib import Path

import comfyui_browser as browser
import comfyui_host as host
from PIL import Image

sys.path.insert(0, str(host.ROOT))
from ssd_core.cost import KNOWN

SCREENSHOT = host.ROOT / ".github" / "images" / "comfyui.png"
DRAWN = ("1-text-to-image", "2-ar-against-ssd", "3-speed-sweep")
LARGE = {
    "Janus-Pro-7B": "janus-pro-7b",
    "Emu3-Gen-hf": "emu3-gen",
    "Lumina-mGPT-7B-768": "lumina-mgpt-7b-768",
}
THUMBNAIL = 512, 320
BACKGROUND = (24, 24, 28)


def main() -> None:
    """Runs the workflows once and writes all pictures."""
    if host.missing():
        sys.exit(host.missing())
    workflows = sorted((host.ROOT / "workflows").glob("*.json"))
    with tempfile.TemporaryDirectory() as folder:
        server = host.Server(Path(folder) / "base")
        try:
            pictures = {path: drawn(server, path.stem) for path in workflows if path.stem in DRAWN}
            pretend(server)
            with browser.frontend(server) as (page, _):
                close_banner(page)
                shot = screenshot(page)
                pictures |= {path: graph(page, path.stem) for path in workflows if path.stem not in DRAWN}
        finally:
            server.stop()
    for path, picture in pictures.items():
        thumbnail(picture).save(path.with_suffix(".jpg"), quality=85, optimize=True)
        print(f"wrote {path.with_suffix('.jpg')}")
    shot.save(SCREENSHOT, optimize=True)
    print(f"wrote {SCREENSHOT}")


def pretend(server: host.Server) -> None:
    """Gives the server the configurations of the large models, which is all that planning passes needs."""
    for name, size in LARGE.items():
        folder = server.base / "models" / "ssd" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(KNOWN[size]), encoding="utf-8")


def close_banner(page: browser.Page) -> None:
    """Closes what the frontend has to say about itself."""
    banner = page.get_by_text("Introducing Nodes 2.0")
    if banner.count():
        banner.first.locator("xpath=ancestor::*[count(.//button) > 1][1]").get_by_role("button").last.click()


def drawn(server: host.Server, name: str) -> Image.Image:
    """The picture that a workflow draws."""
    prompt = host.api_form(host.load_workflow(name), server.get("/object_info"))
    client = host.Client(server)
    run = client.run(prompt)
    client.close()
    if run.error:
        sys.exit(f"{name}: {run.error}")
    node = next(id for id, node in prompt.items() if node["class_type"] == "SaveImage")
    image = run.output(node)["images"][0]
    return Image.open(server.base / image["type"] / image["filename"]).convert("RGB")


def graph(page: browser.Page, name: str) -> Image.Image:
    """The graph of a workflow."""
    browser.open_workflow(page, host.load_workflow(name))
    page.wait_for_timeout(1000)
    return photograph(page).crop((90, 110, browser.SIZE["width"], browser.SIZE["height"]))


def screenshot(page: browser.Page) -> Image.Image:
    """The first workflow after a run."""
    browser.open_workflow(page, host.load_workflow("1-text-to-image"))
    browser.run(page)
    browser.wait_for_panel(page, "SSDSampler", "passes (planned")
    page.wait_for_timeout(1500)
    return photograph(page)


def photograph(page: browser.Page) -> Image.Image:
    """What the page shows."""
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
