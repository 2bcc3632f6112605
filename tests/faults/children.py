"""Processes to disturb, made by fork: nothing is imported again, so a test can afford many."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any

NOBODY = 65534


class Child:
    """A forked process that runs `work(say)`; what it says comes line by line."""

    def __init__(self, work: Callable[[Callable[[str], None]], None]) -> None:
        ours, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ours)
            self._run(work, theirs)
        os.close(theirs)
        self.lines = os.fdopen(ours, "r", encoding="utf-8")
        self.status: int | None = None

    @staticmethod
    def _run(work: Callable[[Callable[[str], None]], None], pipe: int) -> None:
        def say(text: str) -> None:
            os.write(pipe, (text.replace("\n", " ") + "\n").encode())

        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            warnings.simplefilter("ignore")
            work(say)
            code = 0
        except BaseException:
            with contextlib.suppress(OSError):
                say(traceback.format_exc())
        finally:
            os._exit(code)

    def hear(self) -> str:
        return self.lines.readline().strip()

    def send(self, kind: int) -> None:
        os.kill(self.pid, kind)

    def wait(self) -> list[str]:
        """Return what it said after it has ended; `status` is its exit code, negative for a signal."""
        said = self.lines.read().splitlines()
        self.lines.close()
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return said


def as_nobody(work: Callable[[], Any]) -> str:
    """What `work` returns or raises as a user without rights; only root can become one."""

    def act(say: Callable[[str], None]) -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            say(f"returned {work()!r:.100}")
        except Exception as error:
            say(f"{type(error).__name__}: {error}")

    return " ".join(Child(act).wait())
