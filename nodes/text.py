"""What the nodes say: names and tooltips, written once, in locales/en/nodeDefs.json."""

import json
from pathlib import Path

LOCALES = Path(__file__).parent.parent / "locales"
_TEXTS = json.loads((LOCALES / "en" / "nodeDefs.json").read_text(encoding="utf-8"))


class NodeText:
    """The texts of one node."""

    def __init__(self, node_id: str):
        self.node_id = node_id
        self._texts = _TEXTS[node_id]

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
