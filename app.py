"""The page where AR and SSD draw one sentence side by side. Start it with: python app.py"""

import argparse
import logging
import os
import random
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import gradio as gr
import torch

from ssd_core.__main__ import add_model_options
from ssd_core.app import recordings, settings
from ssd_core.app.__main__ import studio_of
from ssd_core.app.race import Race, live, title
from ssd_core.app.runs import Sweep, completed, draw, new_race, run_race
from ssd_core.app.studio import SHIPPED, Studio
from ssd_core.app.turnstile import Stopped, Turnstile
from ssd_core.correction import RULES, SHARED_NOISE
from ssd_core.decoders import DECODERS, DecodeConfig
from ssd_core.sampling import MAX_SEED
from ssd_core.schedule import COMMITS
from ssd_core.speeds import SPEEDS, at_speed, stops

ROOT = Path(__file__).parent
VIEWS = ROOT / "ssd_core" / "app" / "views"
PREVIEW_SECONDS = 0.25  # between previews: 3 to 4 % of a decoder's time on two cores; at 0.1 they cost 7 %
VISITORS = 32  # handlers that may wait at once; one of them decodes
ITERATED = {  # what the speed slider says about decoders whose passes depend on the picture
    "lossless": "AR's own picture for the seed, in as few passes as it takes",
    "window": "not quite AR's picture, in fewer passes than lossless",
}
NUMBER_LABELS = {"b": "Rounds b", "i": "Rounds i"}

INTRO = """
<h1>AR against SSD, row by row</h1>
<p>One sentence, drawn twice: token by token on the left, by a faster decoder on the right. The slider chooses which,
from AR's own picture to the least time. Whoever is behind on its own clock moves next.</p>
"""

API_HELP = """
### From a program

One endpoint draws one picture. It waits in the same line as everybody on this page.

```python
from gradio_client import Client

image, metrics = Client("{url}").predict("a fox on snow", 7, "balanced", api_name="/generate")
```

`prompt` text, `seed` 0 to {seed}, `speed` one of {speeds}. `image` is the path of a PNG whose text fields hold the
settings; `metrics` has the passes, the decoder's seconds (without pixels) and the share of drafts that each verify
round kept. While it runs, `submit` yields the place in line and the progress.
"""


def view(name: str, value: dict | None, elem_id: str) -> gr.HTML:
    """A view whose markup and script are package data. Its markup never changes: scripts draw into it."""
    script = (VIEWS / "common.js").read_text(encoding="utf-8") + (VIEWS / f"{name}.js").read_text(encoding="utf-8")
    return gr.HTML(
        value,
        html_template=(VIEWS / f"{name}.html").read_text(encoding="utf-8"),
        js_on_load=script,
        apply_default_css=False,
        elem_id=elem_id,
    )


def button(text: str, elem_id: str, variant: str) -> gr.Button:
    """A button beside fields; one that stops something starts disabled."""
    return gr.Button(
        text,
        variant=variant,
        interactive=variant != "stop",
        scale=1,
        min_width=90,
        elem_id=elem_id,
        elem_classes="ssd-act",
    )


class Page:
    """The page and its handlers. They translate: what happens is in ssd_core.app."""

    def __init__(self, studio: Studio):
        self.studio, self.turnstile = studio, Turnstile()
        self.stops: dict[str | None, set[threading.Event]] = defaultdict(set)
        self.gallery = recordings.shipped()
        with gr.Blocks(title="AR against SSD", delete_cache=(600, 3600)) as self.demo:
            self._lay_out()
            self._connect()

    # ---------------------------------------------------------------------------------------------- layout

    def _lay_out(self) -> None:
        form = settings.default_form(self.studio.family, self.studio.defaults)
        first = next(iter(self.gallery.values()), None)
        self.fields: dict[str, gr.Component] = {}
        gr.HTML(INTRO, elem_classes="ssd-intro", apply_default_css=False)
        with gr.Row(equal_height=True, elem_classes="ssd-row"):
            self.fields["prompt"] = gr.Textbox(
                label="Prompt",
                placeholder="two turtles on snow",
                max_length=400,
                autofocus=True,
                scale=8,
                min_width=300,
                elem_id="prompt",
            )
            self.go = button("Race", "go", "primary")
            self.halt = button("Stop", "halt", "stop")
        self.fields["speed"] = view("speed", self._speed("balanced"), "speed")
        self.fields["seed"] = gr.Number(
            form["seed"], label="Seed", precision=0, minimum=0, maximum=MAX_SEED, render=False, elem_id="seed"
        )
        self.randomize = gr.Checkbox(True, label="New seed for every race", render=False, elem_id="randomize")
        gr.Examples(
            [[prompt, seed, False] for prompt, seed, _ in recordings.GALLERY],
            [self.fields["prompt"], self.fields["seed"], self.randomize],
            example_labels=[prompt for prompt, _, _ in recordings.GALLERY],
            label="Examples",
            elem_id="examples",
            api_visibility="private",
        )
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap") as self.tabs:
            with gr.Tab("Race", id="race"):
                hello = first and first | {"status": "A recorded race. Press Race for a live one on this machine."}
                self.race_view = view("race", hello, "race")
                with gr.Accordion("Advanced", open=False, elem_id="advanced"):
                    self._lay_out_advanced(form)
            with gr.Tab("Compare", id="compare"):
                self.compare_view = view("compare", first, "compare")
            with gr.Tab("Inside", id="inside"):
                self.inside_view = view("inside", first, "inside")
            with gr.Tab("Sweep", id="sweep"):
                with gr.Row(equal_height=True, elem_classes="ssd-row"):
                    self.sweep_rows = gr.CheckboxGroup(
                        [1, 2, 3], value=[1], label="k_v: rows drafted at once", scale=2, min_width=200
                    )
                    self.sweep_rule = gr.Dropdown(
                        list(RULES),
                        value=SHARED_NOISE,
                        label="Update rule",
                        info="shared-noise comes closer to AR's picture with every round",
                        scale=3,
                        min_width=240,
                    )
                    self.sweep_go = button("Sweep", "sweep-go", "primary")
                    self.sweep_halt = button("Stop", "sweep-halt", "stop")
                self.sweep_view = view("sweep", None, "sweep")
            with gr.Tab("Gallery", id="gallery"):
                self.choice = gr.Radio(
                    list(self.gallery), value=next(iter(self.gallery), None), label="Recorded races", elem_id="choice"
                )
                self.gallery_view = view("race", first, "gallery")
            with gr.Tab("Model", id="model") as self.model_tab:
                self.facts = gr.Markdown(self._facts(), elem_id="facts")
                with gr.Row(equal_height=True, elem_classes="ssd-row"):
                    self.backbone = gr.Dropdown(
                        self.studio.backbones(), value=self.studio.name, label="Backbone on this machine", scale=3
                    )
                    self.heads = gr.Dropdown(
                        self.studio.heads_files(), value=self.studio.heads, label="Drafting heads", scale=3
                    )
                    self.load = button("Load", "load", "secondary")
            with gr.Tab("API", id="api"):
                self.api_help = gr.Markdown(self._api_help("http://127.0.0.1:7860/"), elem_id="api-help")
        self._lay_out_api()

    def _lay_out_advanced(self, form: dict) -> None:
        with gr.Row():
            self.fields["seed"].render()
            self.randomize.render()
            self.fields["images"] = gr.Radio(list(settings.BATCHES), value=form["images"], label="Pictures per run")
        with gr.Row():
            self.fields["cfg"] = gr.Number(form["cfg"], label="CFG (1: off)", minimum=0, maximum=30, step=0.1)
            self.fields["temperature"] = gr.Number(form["temperature"], label="Temperature", maximum=5, step=0.05)
            self.fields["top_k"] = gr.Number(form["top_k"], label="Top-k (0: all)", precision=0, minimum=0)
            self.fields["top_p"] = gr.Number(form["top_p"], label="Top-p (1: all)", minimum=0, maximum=1, step=0.05)
        takes_negatives = bool(self.studio.current and self.studio.current.negative)
        self.fields["negative"] = gr.Textbox("", label="Negative prompt", visible=takes_negatives, max_length=400)
        with gr.Row():
            for side, heading in (("left", "Left decoder"), ("right", "Right decoder (or use the speed slider)")):
                with gr.Column(min_width=280):
                    self._lay_out_decoder(side, heading, form)

    def _lay_out_decoder(self, side: str, heading: str, form: dict) -> None:
        def value(name: str):
            return form[f"{side}_{name}"]

        self.fields[f"{side}_decoder"] = gr.Dropdown(list(DECODERS), value=value("decoder"), label=heading)
        with gr.Row():
            for name in settings.INTEGERS:
                low = int(name.startswith("k_"))
                label = NUMBER_LABELS.get(name, name)
                self.fields[f"{side}_{name}"] = gr.Number(
                    value(name), label=label, precision=0, minimum=low, maximum=64, min_width=60
                )
        with gr.Row():
            self.fields[f"{side}_commits"] = gr.Dropdown(list(COMMITS), value=value("commits"), label="Commits")
            self.fields[f"{side}_settle"] = gr.Checkbox(value("settle"), label="Settle")
        with gr.Row():
            self.fields[f"{side}_rule"] = gr.Dropdown(list(RULES), value=value("rule"), label="Update rule", scale=2)
            for name in settings.NUMBERS:
                self.fields[f"{side}_{name}"] = gr.Number(
                    value(name), label=name.capitalize(), precision=0, minimum=0, min_width=100
                )

    def _lay_out_api(self) -> None:
        with gr.Row(visible=False):
            inputs = [
                gr.Textbox(label="prompt"),
                gr.Number(7, label="seed", precision=0, minimum=0, maximum=MAX_SEED),
                gr.Dropdown(list(SPEEDS), value="balanced", label="speed"),
            ]
            outputs = [gr.Image(label="image", format="png"), gr.JSON(label="metrics")]
            gr.Button().click(
                self.generate,
                inputs,
                outputs,
                api_name="generate",
                api_description="Draws one picture and says what it took.",
                concurrency_limit=VISITORS,
                show_progress="hidden",
            )

    # ---------------------------------------------------------------------------------------------- events

    def _connect(self) -> None:
        quiet = {"api_visibility": "private", "show_progress": "hidden"}
        names = list(settings.default_form(self.studio.family, self.studio.defaults))
        self.fields = {name: self.fields[name] for name in names}
        inputs = list(self.fields.values())
        gr.on(
            [self.go.click, self.fields["prompt"].submit],
            self.race,
            [*inputs, self.randomize],
            [
                *(self.race_view, self.compare_view, self.inside_view),
                *(self.go, self.halt, self.fields["seed"], self.tabs),
            ],
            trigger_mode="once",
            concurrency_limit=VISITORS,
            **quiet,
        )
        self.sweep_go.click(
            self.sweep,
            [*inputs, self.sweep_rows, self.sweep_rule],
            [self.sweep_view, self.sweep_go, self.sweep_halt],
            trigger_mode="once",
            concurrency_limit=VISITORS,
            **quiet,
        )
        gr.on([self.halt.click, self.sweep_halt.click], self.stop, queue=False, **quiet)
        right = [self.fields[f"right_{name}"] for name in settings.KNOBS]
        self.fields["speed"].input(
            self.speed_chosen, self.fields["speed"], right, queue=False, trigger_mode="always_last", **quiet
        )
        gr.on(
            [field.input for field in right],
            self.set_by_hand,
            right,
            self.fields["speed"],
            queue=False,
            trigger_mode="always_last",
            **quiet,
        )
        self.model_tab.select(self._facts, None, self.facts, queue=False, **quiet)
        self.choice.change(self.gallery.get, self.choice, self.gallery_view, queue=False, **quiet)
        self.load.click(
            self.load_model,
            [self.backbone, self.heads],
            [self.facts, self.load, *inputs],
            concurrency_limit=VISITORS,
            **quiet,
        )
        self.demo.load(self.open, None, [*inputs, self.randomize, self.race_view, self.api_help], **quiet)

    def race(self, request: gr.Request, *values) -> Generator[dict]:
        """Runs a race and shows it; every outcome leaves the buttons usable."""
        *values, randomize = values
        form = self._form(values)
        if randomize:
            form["seed"] = random.randint(0, MAX_SEED - max(settings.BATCHES))
        stop = self._new_stop(request)
        race: Race | None = None

        def work() -> dict:
            nonlocal race
            model = self.studio.model()
            race = new_race(model, wanted)
            run_race(race, stop)
            return completed(race, model, wanted)

        def shown(ahead: int) -> dict:
            status = f"{self._waiting(ahead)}Seed {form['seed']}."
            if race is None:
                return {self.race_view: {"mode": "waiting", "status": status}}
            return {self.race_view: live(race, self.studio.current.colors) | {"status": status}}

        rest = {self.go: gr.update(interactive=True), self.halt: gr.update(interactive=False)}
        try:
            wanted = settings.settings_of(form, self.studio.family)
            yield shown(0) | {
                self.go: gr.update(interactive=False),
                self.halt: gr.update(interactive=True),
                self.fields["seed"]: form["seed"],
                self.tabs: gr.update(selected="race"),
            }
            run = yield from self._attend(work, stop, shown)
            run |= {"status": self._seed_and_clock(run), "link": settings.to_query(form, self._defaults())}
            if run["mode"] == "final":
                rest |= {self.compare_view: run, self.inside_view: run}
            yield {self.race_view: run} | rest
        except Stopped:
            yield {self.race_view: {"mode": "left", "status": "Stopped before it was your turn."}} | rest
        except Exception as error:
            yield {self.race_view: {"mode": "error", "status": explain(error)}} | rest
        finally:
            self._forget(request, stop)

    def sweep(self, request: gr.Request, *values) -> Generator[dict]:
        """Draws one prompt and seed with one schedule after the other."""
        *values, rows, rule = values
        form = self._form(values)
        stop = self._new_stop(request)
        sweep: Sweep | None = None

        def work() -> None:
            nonlocal sweep
            sweep = Sweep(self.studio.model(), wanted, sorted(rows), rule)
            sweep.run(stop)

        def shown(ahead: int) -> dict:
            if sweep is None:
                return {self.sweep_view: {"mode": "waiting", "status": self._waiting(ahead) or "Starting."}}
            return {self.sweep_view: shot("live", f"Picture {len(sweep.cards) + 1} of {len(sweep.configs)}.")}

        def shot(mode: str, status: str) -> dict:
            return {"mode": mode, "status": status, "cards": list(sweep.cards), "progress": sweep.progress}

        rest = {self.sweep_go: gr.update(interactive=True), self.sweep_halt: gr.update(interactive=False)}
        try:
            wanted = settings.settings_of(form, self.studio.family)
            if not rows:
                raise ValueError("Choose at least one k_v to sweep over.")
            yield shown(0) | {
                self.sweep_go: gr.update(interactive=False),
                self.sweep_halt: gr.update(interactive=True),
            }
            yield from self._attend(work, stop, shown)
            done = shot("final", f"“{wanted.prompt}”, seed {wanted.seed}, rule {rule}.")
            done |= {"sheet": sweep.sheet(), "file": f"ssd-{wanted.seed}-sweep.png"}
            yield {self.sweep_view: done} | rest
        except Stopped:
            stopped = shot("stopped", "Stopped.") if sweep else {"mode": "left", "status": "Stopped before your turn."}
            yield {self.sweep_view: stopped} | rest
        except Exception as error:
            yield {self.sweep_view: {"mode": "error", "status": explain(error)}} | rest
        finally:
            self._forget(request, stop)

    def generate(self, prompt: str, seed: int, speed: str) -> Generator[tuple]:
        """The public endpoint: yields (None, place or progress) while it works, then (image, metrics)."""
        stop, progress = threading.Event(), [0.0]
        form = self._defaults() | {"prompt": prompt, "seed": seed, "speed": speed}

        def work() -> tuple:
            return draw(self.studio.model(), settings.settings_of(form, self.studio.family), stop, progress)

        def shown(ahead: int) -> tuple:
            return None, {"state": "in line", "ahead": ahead} if ahead else {"progress": round(progress[-1], 3)}

        try:
            settings.settings_of(form, self.studio.family)  # a wrong request need not wait in line
            yield (yield from self._attend(work, stop, shown))
        except Exception as error:
            raise gr.Error(explain(error), print_exception=False) from None

    def stop(self, request: gr.Request) -> None:
        """Asks this visitor's runs to end after their present step."""
        for event in list(self.stops.get(request.session_hash, ())):
            event.set()

    def speed_chosen(self, value: dict) -> list:
        """What a named stop means, for the fields of the right decoder."""
        return list(settings.knobs_of(at_speed(value["speed"], self.studio.family)).values())

    def set_by_hand(self, *values) -> dict:
        """The slider says "custom" and what that means."""
        try:
            config = settings.config_of(dict(zip(settings.KNOBS, values, strict=True)))
            note = f"Custom: {config}{self._planned(config)}"
        except (ValueError, TypeError) as error:
            note = str(error)
        return self._speed(settings.CUSTOM, note)

    def load_model(self, backbone: str, heads: str) -> Generator[dict]:
        """Loads another model for everybody on this page."""

        def work() -> None:
            if backbone not in self.studio.backbones() or heads not in self.studio.heads_files():
                raise ValueError("That file is no longer on this machine: reload the page to see what is.")
            self.studio.choose(backbone, heads)

        try:
            yield {self.facts: f"Loading {backbone} …", self.load: gr.update(interactive=False)}
            yield from self._attend(
                work, threading.Event(), lambda ahead: {self.facts: self._waiting(ahead) or f"Loading {backbone} …"}
            )
            form = self._defaults()
            changed = {
                self.fields[name]: form[name] for name in form if name not in ("prompt", "seed", "images", "speed")
            }
            changed[self.fields["negative"]] = gr.update(value="", visible=self.studio.current.negative)
            changed[self.fields["speed"]] = self._speed("balanced")
            yield {self.facts: self._facts(), self.load: gr.update(interactive=True)} | changed
        except Exception as error:
            yield {self.facts: f"**{explain(error)}**\n\n{self._facts()}", self.load: gr.update(interactive=True)}

    def open(self, request: gr.Request) -> dict:
        """Fills the page from a link that somebody was sent."""
        query = dict(request.query_params)
        changed = {self.api_help: self._api_help(str(request.request.base_url))}
        defaults = self._defaults()
        if not query.keys() & defaults.keys():
            return changed
        form = settings.from_query(query, defaults)
        changed |= {self.fields[name]: value for name, value in form.items()}
        knobs = [form[f"right_{name}"] for name in settings.KNOBS]
        custom = form["speed"] == settings.CUSTOM
        changed[self.fields["speed"]] = self.set_by_hand(*knobs) if custom else self._speed(form["speed"])
        message = {"mode": "link", "status": "This link describes a run. Press Race to see it."}
        return changed | {self.randomize: False, self.race_view: message}

    # ---------------------------------------------------------------------------------------------- helpers

    def _attend(self, work: Callable, stop: threading.Event, shown: Callable[[int], dict | tuple]) -> Generator:
        """Yields what to show until the work is done; its value is the work's result."""
        job = self.turnstile.run(work, stop, PREVIEW_SECONDS)
        try:
            while True:
                yield shown(next(job))
        except StopIteration as done:
            return done.value
        finally:
            job.close()

    def _form(self, values: Sequence) -> dict:
        form = dict(zip(self.fields, values, strict=True))
        return form | {"speed": form["speed"]["speed"]}

    def _defaults(self) -> dict:
        return settings.default_form(self.studio.family, self.studio.defaults)

    def _new_stop(self, request: gr.Request) -> threading.Event:
        stop = threading.Event()
        self.stops[request.session_hash].add(stop)
        return stop

    def _forget(self, request: gr.Request, stop: threading.Event) -> None:
        self.stops[request.session_hash].discard(stop)
        if not self.stops[request.session_hash]:
            del self.stops[request.session_hash]

    def _waiting(self, ahead: int) -> str:
        if self.studio.loading:
            return "Loading the model. "
        return f"In line, {ahead} ahead of you. " if ahead else ""

    def _seed_and_clock(self, run: dict) -> str:
        pixels = max((lane.get("pixels", 0) for lane in run["lanes"]), default=0)
        apart = f", pixels apart ({pixels:.2f} s)" if pixels else ""
        notice = self.studio.current.notice
        return f"Seed {run['seed']}. Seconds are the decoder's own: prompt and tokens{apart}. {notice}"

    def _planned(self, config: DecodeConfig) -> str:
        if config.decoder == "ssd":
            most = "at most " if config.schedule.settle else ""
            return f", {most}{config.schedule.planned_nfe(self.studio.grid)} passes"
        return f", {self.studio.grid.size} passes" if config.decoder == "ar" else ""

    def _speed(self, speed: str, note: str = "") -> dict:
        scale = [
            {"name": name, "label": name.capitalize(), "detail": self._described(config)}
            for name, config in stops(self.studio.family).items()
        ]
        return {"speed": speed, "stops": scale, "note": note}

    def _described(self, config: DecodeConfig) -> str:
        if config.decoder == "ssd":
            return f"{title(config)}{self._planned(config)} instead of {self.studio.grid.size}"
        return f"{title(config)}: {ITERATED.get(config.decoder) or DECODERS[config.decoder]}"

    def _facts(self) -> str:
        model = self.studio.current
        if model is None:
            return f"**{self.studio.name}** is loaded with the first race."
        rows = "\n".join(f"| {name} | {value} |" for name, value in model.facts.items())
        notice = f"**{model.notice}**\n\n" if model.notice else ""
        return f"{notice}| | |\n| --- | --- |\n{rows}"

    def _api_help(self, url: str) -> str:
        return API_HELP.format(url=url, seed=MAX_SEED, speeds=", ".join(f"`{name}`" for name in SPEEDS))


def explain(error: Exception) -> str:
    """One sentence for a person, with the next step; what nobody foresaw goes to the log in full."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "The device is out of memory: draw one picture per run, or start with --dtype bfloat16 or --bits 4."
    if isinstance(error, (ValueError, FileNotFoundError)):  # ours: they say how to mend it
        return str(error)
    if isinstance(error, Stopped):
        return "Stopped: the page is closing, or somebody asked for it."
    logging.getLogger(__name__).error("unexpected", exc_info=error)
    return "Something went wrong that should not have: the terminal that runs this page says what. Try once more."


def launch_options() -> dict:
    """How the page is served: to this machine only, without telemetry, history or tunnels."""
    font = ("system-ui", "sans-serif")
    return {
        "theme": gr.themes.Default(
            primary_hue="indigo", neutral_hue="slate", font=font, font_mono=("ui-monospace", "monospace")
        ),
        "head": f"<style>{(VIEWS / 'page.css').read_text(encoding='utf-8')}</style>",
        "footer_links": ["api", "settings"],
        "run_history": False,
        "ssr_mode": False,
        "enable_monitoring": False,
        "show_error": False,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Serves the page until it is interrupted; 2 after one sentence about what is wrong with the options."""
    parser = argparse.ArgumentParser(prog="python app.py", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--heads", default=SHIPPED, help='a heads file, "shipped", or "none" (default: %(default)s)')
    parser.add_argument(
        "--models", type=Path, default=ROOT / "models", help="folder with checkpoints and heads to choose from"
    )
    parser.add_argument("--host", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, help="(default: 7860, or the next free one)")
    parser.add_argument("--share", action="store_true", help="open a public tunnel")
    args = parser.parse_args(argv)
    studio = studio_of(args, args.models)
    if studio.name != "builtin":
        try:
            studio.model()
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    page = Page(studio)
    page.demo.queue(max_size=VISITORS)
    try:
        page.demo.launch(server_name=args.host, server_port=args.port, share=args.share, **launch_options())
    except OSError as error:  # the port is taken
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        page.turnstile.stop_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
