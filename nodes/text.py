"""What the nodes say: names, tooltips and sentences, written once, in locales/."""

import json
from pathlib import Path

LOCALES = Path(__file__).parent.parent / "locales"
ENGLISH = "en"
LANGUAGES = tuple(sorted(path.parent.name for path in LOCALES.glob("*/main.json")))


def _read(language: str, name: str) -> dict:
    return json.loads((LOCALES / language / f"{name}.json").read_text(encoding="utf-8"))


_NODES = _read(ENGLISH, "nodeDefs")
_SENTENCES = {language: _read(language, "main")["ssd"] for language in LANGUAGES}


def say(key: str, language: str = ENGLISH, **values: object) -> str:
    """The sentence "group.name" of main.json with its values; in English where there is no such language."""
    group, name = key.split(".")
    return _SENTENCES.get(language, _SENTENCES[ENGLISH])[group][name].format(**values)


class NodeText:
    """The texts of one node."""

    def __init__(self, node_id: str):
        self.node_id = node_id
        self._texts = _NODES[node_id]

    @property
    def title(self) -> str:
        """Display name of the node."""
        return self._texts["display_name"]

    @property
    def description(self) -> str:
        """One or two sentences about the node."""
        return self._texts["description"]

    def input(self, name: str) -> dict[str, str]:
        """Display name and, if it is written there, tooltip of an input, as keyword arguments of V3 inputs."""
        texts = self._texts["inputs"][name]
        arguments = {"display_name": texts["name"], "tooltip": texts.get("tooltip")}
        return {key: value for key, value in arguments.items() if value is not None}

    def output(self, number: int) -> dict[str, str]:
        """Display name and tooltip of an output, as keyword arguments of V3 outputs."""
        texts = self._texts["outputs"][str(number)]
        return {"display_name": texts["name"], "tooltip": texts["tooltip"]}


def choices(question: str, options: dict[str, str], advice: str = "") -> str:
    """A tooltip for a choice: the question, a line per option, and what to try."""
    return "\n".join([question, *(f"{name}: {what}." for name, what in options.items()), *([advice] if advice else [])])
