"""What the browser asks while knobs move: how many passes the settings of a node would take."""

import asyncio

from aiohttp import web
from server import PromptServer

from ..ssd_core.decoders import DECODERS
from . import folders, settings
from .managed import outline
from .text import ENGLISH

PLAN = "/ssd/plan"


def plan(question: dict) -> dict:
    """Answers with {"passes", "most", "ar", "text"}, or {"error"}; passes is None where they depend on the picture.

    question: "backbone", "width" and "height", "language" of the text, and either "preset" and "speed", or "peer"
    with the values of Peer Decoder, or "decoder" and the sampler's knobs.
    """
    try:
        folder = folders.backbone_folder(str(question["backbone"]))
        family, grid = outline(folder, int(question.get("width", 0)), int(question.get("height", 0)))
        if "preset" in question:
            config = settings.scheduled(str(question["preset"]), int(question["speed"]), family)
        elif "peer" in question:
            config = settings.peer_config(**question["peer"])
        else:
            knobs = {name: int(question[name]) for name in ("r", "k_v", "b", "i", "k_h")}
            settle = bool(question.get("settle"))
            schedule = settings.schedule_of(**knobs, commits=question["commits"], settle=settle)
            decoder = question["decoder"] if question["decoder"] in DECODERS else "ssd"
            window = int(question["window"])
            config = settings.decode_config(None, decoder=decoder, schedule=schedule, window=window)
        passes, most = settings.planned_passes(config, grid), settings.most_passes(config, grid)
        sentence = settings.plan(config, grid, str(question.get("language", ENGLISH)))
        text = f"{config.schedule if config.decoder == 'ssd' else config}\n{sentence}"
        return {"passes": passes, "most": most, "ar": grid.size, "rows": grid.rows, "cols": grid.cols, "text": text}
    except KeyError as error:
        return {"error": f"The question lacks {error}."}
    except (ValueError, TypeError, IndexError, OSError, ZeroDivisionError) as error:
        return {"error": str(error)}


def register() -> None:
    """Adds the route to ComfyUI's server."""

    @PromptServer.instance.routes.post(PLAN)
    async def answer(request: web.Request) -> web.Response:
        try:
            question = await request.json()
        except ValueError:
            return web.json_response({"error": "Expected JSON."}, status=400)
        answered = await asyncio.to_thread(plan, question)  # the first question about a model reads its files
        return web.json_response(answered, status=400 if "error" in answered else 200)
