"""This machine: in process, or a pool of processes from the standard library that starts dead ones again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

import torch

from polyscore.errors import require
from polyscore.experiments.engines import RETRIES, EngineError, Item, Result


class Local:
    """One process (this one) or a pool.

    Args:
        workers: processes; with 1 the tasks run in this one.
    """

    def __init__(self, workers: int = 1) -> None:
        require(workers >= 1, "workers", "be at least 1", workers, "Pass 1 to compute in this process.")
        self.workers = workers

    def map(self, task: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield results as they are done."""
        return map(task, items) if self.workers == 1 else self._pool(task, list(items))

    def _pool(self, task: Callable[[Item], Result], items: list[Item]) -> Iterator[Result]:
        # A worker that dies takes its pool with it and nobody knows whose fault it was: every task that was running is
        # charged one attempt, a new pool takes what is left.
        attempts, left = [0] * len(items), set(range(len(items)))
        while left:
            try:
                for index, result in self._round(task, items, sorted(left), attempts):
                    left.discard(index)
                    yield result
            except BrokenProcessPool as error:
                if max(attempts[index] for index in left) > RETRIES:
                    raise EngineError(
                        f"a task must survive; a worker died {RETRIES + 1} times under the same one (killed, or out of "
                        "memory). What was stored is safe. Use fewer --workers."
                    ) from error

    def _round(
        self, task: Callable[[Item], Result], items: list[Item], left: list[int], attempts: list[int]
    ) -> Iterator[tuple[int, Result]]:
        """Run what is left in one pool, no more tasks at a time than workers, so that a crash charges few."""
        context = multiprocessing.get_context("spawn")
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        pool = ProcessPoolExecutor(self.workers, context, initializer=_start, initargs=(threads, os.getpid()))
        running: dict[Future[Result], int] = {}
        queue = list(left)
        try:
            while queue or running:
                while queue and len(running) < self.workers:
                    index = queue.pop(0)
                    attempts[index] += 1
                    running[pool.submit(task, items[index])] = index
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        except BaseException:
            # Ctrl-C or an error of a task: what runs would run on for nobody; its own store keeps what is done.
            for process in list((pool._processes or {}).values()):
                process.kill()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _start(threads: int, parent: int) -> None:
    """Share the cores; leave Ctrl-C to the parent, and end with it: an orphan would hold its store for nobody."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
