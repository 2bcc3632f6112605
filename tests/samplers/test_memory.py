"""Out of memory: the chunk is halved, said once, and no number changes."""

import warnings

import pytest
import torch

import polyscore as ps
from cases import compositions
from polyscore.errors import DegeneracyWarning
from polyscore.samplers import chunks
from training.networks import families

# Six steps are too few for some of these targets, and enough to see what a chunk does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:swarms should", "ignore:weight should", "ignore:sources of unknown size"
)

SAMPLER, PLAIN = ps.FeynmanKac(particles=4, steps=6), ps.FeynmanKac(particles=1, steps=6)
QS = {
    "gaussians": compositions()["gaussians-2d-1,1,-1"],
    "mixtures": compositions()["shared-2d-1,1,-1"],
    "network": ps.parse("c0 * c1 / c2", families(3, 2, True)[0]),
}


class Scarce:
    """`run_chunk` that runs out of memory for chunks above `limit` swarms, or the first `times` times."""

    def __init__(self, limit=None, times=None):
        self.limit, self.times, self.tried, self.run = limit, times, [], chunks.run_chunk

    def __call__(self, plan, first, stop, counter):
        self.tried.append((first, stop))
        if self.limit is not None and stop - first > self.limit:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        if self.times:
            self.times -= 1
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return self.run(plan, first, stop, counter)


def sample(q, scarce, monkeypatch, n=2000, sampler=SAMPLER, **options):
    monkeypatch.setattr(chunks, "run_chunk", scarce)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = sampler.sample(q, n, seed=3, **options)
    return run, [w for w in caught if issubclass(w.category, DegeneracyWarning) and "memory" in str(w.message)]


@pytest.mark.parametrize("q", QS.values(), ids=QS)
@pytest.mark.parametrize("limit", [1000, 500, 256])
def test_a_chunk_is_halved_until_it_fits(q, limit, monkeypatch):
    """Random numbers are the same; matrix products round otherwise in other company, which plain denoising keeps small
    (a correction may flip on it: one swarm then takes another turn). Gaussians in the plane have no such product."""
    sampler = SAMPLER if q is QS["gaussians"] else PLAIN
    whole = sampler.sample(q, 2000, seed=3)
    run, warned = sample(q, Scarce(limit), monkeypatch, sampler=sampler, max_particles=sampler.particles * 2048)
    assert len(warned) == 1
    for field in ("samples", "particles", "log_weights", "log_evidence", "ess", "ancestors"):
        one, other = getattr(whole, field), getattr(run, field)
        if q is QS["gaussians"]:
            assert torch.equal(one, other), field
        else:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_one_failure_in_the_middle(monkeypatch):
    q, scarce = QS["gaussians"], Scarce(times=0)
    whole = SAMPLER.sample(q, 2000, seed=3, max_particles=4 * 512)
    scarce = Scarce()
    real, fail_at = scarce.run, [(512, 1024)]

    def flaky(plan, first, stop, counter):
        scarce.tried.append((first, stop))
        if (first, stop) in fail_at:
            fail_at.clear()
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return real(plan, first, stop, counter)

    run, warned = sample(q, flaky, monkeypatch, max_particles=4 * 512)
    assert len(warned) == 1
    assert torch.equal(run.particles, whole.particles)
    assert (0, 512) in scarce.tried  # what was done stays done
    assert scarce.tried.count((0, 512)) == 1
    assert (512, 768) in scarce.tried
    assert max(stop - first for first, stop in scarce.tried[2:]) == 256


def test_a_failed_size_is_not_tried_again(monkeypatch):
    """Without max_particles the chunk may be far above n: halving it must still make the work smaller."""
    scarce = Scarce(times=1)
    run, warned = sample(QS["network"], scarce, monkeypatch)
    assert run.samples.shape == (2000, 2)
    assert len(warned) == 1
    assert scarce.tried[0] == (0, 2000)
    assert max(stop - first for first, stop in scarce.tried[1:]) < 2000


def test_when_nothing_fits_the_error_stands(monkeypatch):
    with pytest.raises(torch.cuda.OutOfMemoryError):
        sample(QS["gaussians"], Scarce(limit=0), monkeypatch)


def test_progress_ends_at_the_end(monkeypatch):
    told = []
    scarce = Scarce(limit=600)
    sample(QS["network"], scarce, monkeypatch, max_particles=4 * 2048, progress=lambda *a: told.append(a))
    assert told[-1] == (6, 6)
    assert max(done for done, _ in told) == 6
