"""A Ray cluster: real workers on other machines or this one, fractions of GPUs, retries; refuses what would hang."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from polyscore.errors import require
from polyscore.experiments.engines import RETRIES, EngineError, Item, Result, needs

_ANSWER_SECONDS = 5.0


class OnRay:
    """Tasks on Ray.

    Args:
        address: `host:port` of a running cluster, "auto", or None to start one here with `workers` CPUs.
        workers: CPUs of a cluster started here.
        gpus: GPUs a task, such as 0.5; Ray shares a GPU among tasks.
        cpus: CPUs a task.
        retries: times a task starts again after its worker died.
    """

    def __init__(
        self,
        address: str | None = None,
        workers: int = 2,
        gpus: float = 0.0,
        cpus: float = 1.0,
        retries: int = RETRIES,
    ) -> None:
        require(workers >= 1, "workers", "be at least 1", workers, "Pass one or more.")
        require(gpus >= 0, "gpus", "be at least 0", gpus, "Pass 0 for none.")
        require(gpus <= 1 or gpus == int(gpus), "gpus", "be a fraction up to 1 or a whole number", gpus,
                "Pass 0.5 for two workers a GPU, or 1, 2, ....")  # fmt: skip
        self.address, self.workers, self.gpus, self.cpus, self.retries = address, workers, gpus, cpus, retries

    def map(self, task: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield results as they are done; a dead worker's task starts again elsewhere."""
        ray = self._connect()
        try:
            self._check_resources(ray)
            remote = ray.remote(
                num_cpus=self.cpus, num_gpus=self.gpus, max_retries=self.retries, max_calls=1
            )(task)  # fmt: skip
            pending = [remote.remote(item) for item in items]
            while pending:
                done, pending = ray.wait(pending, num_returns=1)
                yield self._result(ray, done[0])
        finally:
            ray.shutdown()

    def _connect(self) -> Any:
        # Ray reads this at import: nothing may be reported anywhere.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        try:
            import ray
        except ImportError as error:
            raise needs("ray") from error
        if self.address not in (None, "auto"):
            check_answers(str(self.address))
        here: dict[str, Any] = {} if self.address else {"num_cpus": self.workers, "include_dashboard": False}
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR, **here)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EngineError(
                f"--address must be that of a running Ray cluster; got {self.address!r} ({str(error)[:200]}). "
                "Start one with `ray start --head`."
            ) from error
        return ray

    def _check_resources(self, ray: Any) -> None:
        """Ray would wait for ever for what the cluster does not have."""
        there = ray.cluster_resources()
        for name, asked in (("GPU", self.gpus), ("CPU", self.cpus)):
            largest = max((node["Resources"].get(name, 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)
            if asked > largest:
                raise EngineError(
                    f"a task's {name}s must exist on one machine of the cluster; got {asked:g}, the largest has "
                    f"{largest:g} (all together {there.get(name, 0.0):g}). Ask for less, or add machines."
                )

    def _result(self, ray: Any, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except ray.exceptions.WorkerCrashedError as error:
            raise EngineError(
                f"a task must survive; its worker died {self.retries + 1} times. What was stored is safe. "
                "Give a task more memory, or fewer tasks a machine (--gpus)."
            ) from error
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from error
        except ray.exceptions.RayError as error:
            said = str(error).strip() or type(error).__name__
            raise EngineError(
                f"a task must come back; Ray lost this one ({said.splitlines()[0][:200]}). What was "
                "stored is safe: the same command goes on from there."
            ) from error


def check_answers(address: str) -> None:
    """Raise `EngineError` within seconds if nothing listens at `host:port`."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    host = host.strip("[]")  # of an IPv6 address
    if not host or not port.isdigit():
        raise EngineError(f"--address must be host:port or auto; got {address!r}. Ray's port is 6379 by default.")
    try:
        with socket.create_connection((host, int(port)), _ANSWER_SECONDS) as line:
            # Ray speaks HTTP/2: a greeting and empty settings are answered with settings, at once.
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            answer = line.recv(9)
            if len(answer) < 4 or answer[3] != 4:
                raise OSError("something else listens there")
    except (OSError, UnicodeError, OverflowError) as error:
        raise EngineError(
            f"--address must be that of a running Ray cluster; {address} does not answer ({error}). "
            "Start one with `ray start --head`, or check the port (6379 by default)."
        ) from error
