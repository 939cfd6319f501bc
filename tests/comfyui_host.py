"""The real ComfyUI as a process of its own, driven over HTTP and websocket as its browser does it.

`get_comfyui.py` fetches it; where it is not there, the tests that need it are skipped.
"""

import json
import os
import shutil
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import websocket
from get_comfyui import COMFYUI, PYTHON, TREE

ROOT = Path(__file__).parent.parent
PACK = "ComfyUI-SSD"
PATIENCE = float(os.environ.get("COMFYUI_PATIENCE", "120"))  # seconds for a start or a run
SHIPPED = ("__init__.py", "nodes", "ssd_core", "web", "workflows", "locales", "pyproject.toml")
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
PREVIEW, PREVIEW_WITH_METADATA = 1, 4  # kinds of binary messages


def missing() -> str | None:
    """Why there is no ComfyUI to test with, or None."""
    if not (TREE / "main.py").is_file() or not PYTHON.is_file():
        return f"there is no ComfyUI in {COMFYUI}: run python tests/get_comfyui.py"
    return None


class Server:
    """ComfyUI on the CPU with this pack and nothing else; its folders are below `base`."""

    def __init__(self, base: Path, *options: str):
        self.base = base
        for name in ("custom_nodes", "models", "input", "output", "user", "temp"):
            (base / name).mkdir(parents=True)
        pack = base / "custom_nodes" / PACK
        pack.mkdir()
        ignored = shutil.ignore_patterns("__pycache__")
        for name in SHIPPED:  # what users get, without what lies around in a working copy
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, pack / name, **({"ignore": ignored} if source.is_dir() else {}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = base / "server.log"
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parent / "standins"),
            "PYTHONUTF8": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self.log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [
                    *(str(PYTHON), str(TREE / "main.py"), "--cpu", "--listen", "127.0.0.1", "--port", str(self.port)),
                    *("--disable-auto-launch", "--disable-api-nodes", "--base-directory", str(base)),
                    *("--database-url", "sqlite:///:memory:", "--dont-print-server", *options),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=base,
            )
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError(f"ComfyUI ended at once:\n{self.text()[-3000:]}")
            with suppress(OSError):
                self.get("/system_stats")
                return
            time.sleep(0.3)
        raise RuntimeError(f"ComfyUI did not start within {PATIENCE} s:\n{self.text()[-3000:]}")

    def text(self) -> str:
        """What the server has logged."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str):
        """JSON of a GET."""
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as answer:
            return json.loads(answer.read())

    def post(self, path: str, content: dict) -> tuple[int, dict]:
        """Status and JSON of a POST."""
        data = json.dumps(content).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def post_raw(self, path: str, content) -> int:
        """Status of a POST whose answer has no body."""
        request = urllib.request.Request(self.url + path, json.dumps(content).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status

    def stop(self) -> None:
        """Ends the process."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass
class Run:
    """A finished prompt: its messages in order, as (type, data); previews as ("preview", (metadata, JPEG))."""

    prompt_id: str
    messages: list[tuple[str, object]] = field(default_factory=list)
    history: dict = field(default_factory=dict)

    def of(self, kind: str) -> list:
        """The data of all messages of one type."""
        return [data for name, data in self.messages if name == kind]

    def executed(self) -> list[str]:
        """Ids of the nodes that ran (and were not cached), in order."""
        return [data["node"] for data in self.of("executing") if data.get("node") is not None]

    @property
    def error(self) -> str:
        """The message of the exception that ended the run, or nothing."""
        return "".join(data["exception_message"] for data in self.of("execution_error"))

    def output(self, node: str) -> dict:
        """The ui data of a node."""
        return self.history["outputs"][node]


class Client:
    """A browser tab: queues prompts and listens."""

    def __init__(self, server: Server, *, metadata: bool = True):
        self.server, self.id = server, uuid.uuid4().hex
        self.socket = websocket.create_connection(
            f"ws://127.0.0.1:{server.port}/ws?clientId={self.id}", timeout=PATIENCE
        )
        if metadata:
            features = {"type": "feature_flags", "data": {"supports_preview_metadata": True}}
            self.socket.send(json.dumps(features))

    def queue(self, prompt: dict) -> tuple[int, dict]:
        """Posts a prompt; status and answer."""
        return self.server.post("/prompt", {"prompt": prompt, "client_id": self.id})

    def run(self, prompt: dict, on_message=None) -> Run:
        """Queues a prompt and listens until it is over. on_message(type, data) may interrupt it."""
        status, answer = self.queue(prompt)
        assert status == 200, answer
        run = Run(answer["prompt_id"])
        while True:
            kind, data = self._receive()
            run.messages.append((kind, data))
            if on_message:
                on_message(kind, data)
            if kind == "executing" and data["node"] is None and data["prompt_id"] == run.prompt_id:
                break
            if kind in ("execution_error", "execution_interrupted") and data["prompt_id"] == run.prompt_id:
                break
        end = time.monotonic() + PATIENCE
        while not run.history and time.monotonic() < end:  # written a moment after the last message
            run.history = self.server.get(f"/history/{run.prompt_id}").get(run.prompt_id, {})
            time.sleep(0.02)
        return run

    def _receive(self) -> tuple[str, object]:
        message = self.socket.recv()
        if isinstance(message, str):
            content = json.loads(message)
            return content["type"], content["data"]
        kind, length = struct.unpack(">II", message[:8])
        if kind == PREVIEW_WITH_METADATA:
            return "preview", (json.loads(message[8 : 8 + length]), message[8 + length :])
        return ("preview", ({}, message[8:])) if kind == PREVIEW else ("binary", message)

    def close(self) -> None:
        """Closes the tab."""
        self.socket.close()


def load_workflow(name: str) -> dict:
    """A workflow of this pack as its file has it."""
    return json.loads((ROOT / "workflows" / f"{name}.json").read_text(encoding="utf-8"))


def api_form(workflow: dict, definitions: dict) -> dict:
    """What the frontend makes of a workflow without subgraphs: {node id: {"class_type", "inputs"}}."""
    links = {link[0]: link for link in workflow["links"]}
    prompt = {}
    for node in workflow["nodes"]:
        if node["type"] in ("Note", "MarkdownNote"):
            continue
        values, inputs = iter(node["widgets_values"]), {}
        for name, kind, options in widgets(definitions[node["type"]]):
            inputs[name] = next(values)
            if kind == "INT" and options.get("control_after_generate"):
                next(values)
        assert not list(values), f"{node['type']} has more values than widgets"
        for slot in node["inputs"]:
            if slot.get("link") is not None:
                _, origin, origin_slot, *_ = links[slot["link"]]
                inputs[slot["name"]] = [str(origin), origin_slot]
        prompt[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return prompt


def widgets(definition: dict) -> list[tuple[str, str, dict]]:
    """(name, type, options) of a node's inputs that have a widget, in order."""
    found = []
    for group in ("required", "optional"):
        for name in definition["input_order"].get(group, []):
            kind, *options = definition["input"][group][name]
            options = options[0] if options else {}
            if (isinstance(kind, list) or kind in WIDGETS) and not options.get("forceInput"):
                found.append((name, "COMBO" if isinstance(kind, list) else kind, options))
    return found
