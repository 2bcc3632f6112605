"""SLURM arrays through submitit; its local executor runs the same on one machine, for trying out."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from polyscore.errors import require
from polyscore.experiments.engines import RETRIES, EngineError, Item, Result, needs


class OnSlurm:
    """Tasks as one SLURM array.

    Args:
        folder: on a file system that all machines see; logs and pickled results go there.
        workers: array tasks that run at the same time.
        gpus: GPUs a task, a whole number.
        cpus: CPUs a task.
        minutes: time limit of a task.
        partition: of the cluster; None is its default.
        cluster: "slurm", or "local" (processes of this machine) or "debug" (this process).
        poll: seconds between looks at the queue.
    """

    def __init__(
        self,
        folder: str | Path = "runs/slurm",
        workers: int = 8,
        gpus: int = 0,
        cpus: int = 2,
        minutes: int = 60,
        partition: str | None = None,
        cluster: str = "slurm",
        poll: float = 2.0,
    ) -> None:
        require(workers >= 1, "workers", "be at least 1", workers, "Pass one or more.")
        require(cluster in ("slurm", "local", "debug"), "cluster", "be slurm, local or debug", repr(cluster),
                "Leave it out for slurm.")  # fmt: skip
        require(gpus >= 0 and gpus == int(gpus), "gpus", "be a whole number of at least 0 on SLURM", gpus,
                "Pass 0 or 1; a share of a GPU is for --engine ray.")  # fmt: skip
        require(minutes >= 1, "minutes", "be at least 1", minutes, "Pass how long one job may take.")
        self.folder, self.workers, self.cluster, self.poll = Path(folder), workers, cluster, poll
        self.parameters: dict[str, Any] = {"timeout_min": minutes, "cpus_per_task": cpus, "gpus_per_node": int(gpus)}
        if cluster == "slurm":
            self.parameters |= {"slurm_array_parallelism": workers}
            if partition:
                self.parameters["slurm_partition"] = partition

    def map(self, task: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield results as they are done; a failed array task is submitted again."""
        executor = self._executor()
        queue = list(items)
        with executor.batch():
            jobs = [executor.submit(task, item) for item in queue]
        pending = [(job, item, 0) for job, item in zip(jobs, queue, strict=True)]
        try:
            while pending:
                finished = [entry for entry in pending if self.cluster == "debug" or entry[0].done()]
                pending = [entry for entry in pending if entry not in finished]
                for job, item, attempt in finished:
                    try:
                        result = job.result()
                    except Exception as error:
                        again = self._next(attempt, error)
                        pending.append((executor.submit(task, item), item, again))
                    else:
                        yield result
                if not finished:
                    time.sleep(self.poll)
        except BaseException:
            # Ctrl-C or a task that fails for good: what runs would run on for nobody; its own store keeps what is done.
            for job, _, _ in pending:
                job.cancel(check=False)
            raise

    def _next(self, attempt: int, error: Exception) -> int:
        if attempt >= RETRIES:
            last = str(error).strip().splitlines()[-1:]
            raise EngineError(
                f"a SLURM task must survive; the same one failed {RETRIES + 1} times ({' '.join(last)[:200]}). "
                f"Its log is in {self.folder}. What was stored is safe."
            ) from error
        return attempt + 1

    def _executor(self) -> Any:
        try:
            import submitit
        except ImportError as error:
            raise needs("submitit") from error
        if self.cluster == "slurm" and shutil.which("sbatch") is None:
            raise EngineError(
                "the submitit engine must run where SLURM is; sbatch is not on the path. Use a login node, or --engine "
                "local."
            )
        executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
        executor.update_parameters(name="polyscore", **self.parameters)
        return executor
