"""One decode at a time: the line in front of the model, first come, first served, with a place that can be shown."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """Somebody asked for the work to end before it was done."""


class Turnstile:
    """A single worker thread. Two decodes at once on one device would each report more than twice its time."""

    def __init__(self):
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="decoder")
        self._line: list[Future] = []
        self._stops: set[threading.Event] = set()
        self._lock = threading.Lock()

    def run(self, work: Callable[[], T], stop: threading.Event, interval: float = 0.1) -> Generator[int, None, T]:
        """Runs `work` when its turn has come; yields the jobs ahead of it every `interval` seconds, 0 while it runs.

        The value of the generator is what `work` returned. Work must look at `stop` between its steps; closing
        the generator sets it, waits for the step to end and leaves the line. Raises Stopped if `stop` is set
        while others are still ahead, else what `work` raised.
        """
        with self._lock:
            job = self._worker.submit(work)
            self._line = [other for other in self._line if not other.done()] + [job]
            self._stops.add(stop)
        try:
            while not wait([job], interval).done:
                ahead = self._ahead(job)
                if ahead and stop.is_set():
                    raise Stopped
                yield ahead
            return job.result()
        finally:
            stop.set()
            if not job.cancel():
                wait([job])
            self._stops.discard(stop)

    def stop_all(self) -> None:
        """Asks all work, running or waiting, to end."""
        for stop in list(self._stops):
            stop.set()

    def _ahead(self, job: Future) -> int:
        with self._lock:
            return sum(not other.done() for other in self._line[: self._line.index(job)])
