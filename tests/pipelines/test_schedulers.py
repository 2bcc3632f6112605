"""Every scheduler of diffusers is read, or refused for a reason: none is read as what it is not."""

import inspect
import warnings

import diffusers
import pytest
import torch

import polyscore as ps
from pipelines.small import ddpm, unet
from pipelines.tiny import stable_diffusion
from polyscore.errors import PolyscoreError
from polyscore.pipelines.schedulers import DISTILLED, noising_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # diffusers' own, thousands

# Of the betas that a model was trained with, whatever way they go through them.
BY_TABLE = {
    "CogVideoXDDIM", "CogVideoXDPM", "DDIM", "DDIMInverse", "DDIMParallel", "DDPM", "DDPMParallel", "DEISMultistep",
    "DPMSolverMultistep", "DPMSolverMultistepInverse", "DPMSolverSDE", "DPMSolverSinglestep", "EulerAncestralDiscrete",
    "EulerDiscrete", "HeunDiscrete", "KDPM2AncestralDiscrete", "KDPM2Discrete", "LMSDiscrete", "PNDM", "RePaint",
    "SASolver", "UniPCMultistep", "UnCLIP",
}  # fmt: skip
FLOWS = {"FlowMatchEulerDiscrete", "FlowMatchHeunDiscrete"}


def every():
    """Return all schedulers that can be built without arguments, by their name without "Scheduler"."""
    kinds = {name: getattr(diffusers, name, None) for name in dir(diffusers) if name.endswith("Scheduler")}
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are deprecated
        for name, kind in kinds.items():
            if inspect.isclass(kind) and not name.startswith("Flax"):
                try:
                    found[name.removesuffix("Scheduler")] = kind()
                except (TypeError, ImportError):  # arguments, or packages, that are not there
                    continue
    return found


def test_every_scheduler_is_decided():
    found, accepted = every(), set()
    for name, scheduler in found.items():
        try:
            noising_of(scheduler)
            accepted.add(name)
        except PolyscoreError as error:
            assert str(error).count(" must ") == 1 and "; got " in str(error)
            assert ("that has a score" in str(error)) == (f"{name}Scheduler" in DISTILLED), error
    assert accepted == (BY_TABLE | FLOWS) & set(found)
    assert len(accepted) >= 20


@pytest.mark.parametrize("name", sorted(BY_TABLE - {"UnCLIP", "DPMSolverSDE"}))  # of one schedule; of torchsde
def test_the_noise_that_is_read_is_that_of_the_betas(name):
    """Against a product of betas that nobody but this test makes."""
    betas = torch.linspace(2e-4, 0.03, 1000, dtype=torch.float64)
    kind = getattr(diffusers, f"{name}Scheduler")
    options = {"beta_start": 2e-4, "beta_end": 0.03, "beta_schedule": "linear", "num_train_timesteps": 1000}
    if "snr_shift_scale" in inspect.signature(kind).parameters:
        options["snr_shift_scale"] = 1.0
    expected = torch.cumprod(1 - betas, 0).sqrt()
    found = torch.tensor(noising_of(kind(**options)).schedule.alphas, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["LCM", "TCD", "FlowMatchLCM"])
def test_distilled_models_are_refused(name):
    """They have a table or a path of noise, and no score."""
    scheduler = getattr(diffusers, f"{name}Scheduler")()
    rule = f"scheduler must be of a model that has a score.*; got {name}Scheduler. Load the model that was distilled"
    with pytest.raises(PolyscoreError, match=rule):
        ps.from_diffusers(unet(), scheduler=scheduler)
    own = type("Mine", (type(scheduler),), {})()  # made of it
    with pytest.raises(PolyscoreError, match=r"that has a score.*got Mine"):
        noising_of(own)
    pipeline = stable_diffusion()
    pipeline.scheduler = scheduler
    with pytest.raises(PolyscoreError, match="that has a score"):
        ps.from_diffusers(pipeline)


def test_a_u_net_that_is_told_its_guidance_is_refused():
    model = stable_diffusion().unet
    told = diffusers.UNet2DConditionModel.from_config(model.config, time_cond_proj_dim=8)
    given = {"scheduler": ddpm(), "conditions": {"a": torch.zeros(4, 12)}}
    with pytest.raises(PolyscoreError, match=r"a denoiser must have a score.*got time_cond_proj_dim 8"):
        ps.from_diffusers(told, **given)
    assert list(ps.from_diffusers(model, **given)) == ["a"]


@pytest.mark.parametrize("options, match", [
    ({"use_flow_sigmas": True, "flow_shift": 3.0}, r"flow matching.*got UniPC.*FlowMatchEulerDiscrete.*shift=3.0"),
    ({"prediction_type": "flow_prediction", "flow_shift": 5.0}, r"be one of flow matching.*shift=5.0"),
])  # fmt: skip
def test_a_table_that_is_not_of_the_noise_is_refused(options, match):
    with pytest.raises(PolyscoreError, match=match):
        noising_of(diffusers.UniPCMultistepScheduler(**options))


def test_times_that_are_no_timesteps_are_refused():
    """A model of continuous times is told log(sigma) / 4, not a timestep."""
    scheduler = diffusers.EulerDiscreteScheduler(
        timestep_type="continuous", prediction_type="v_prediction", sigma_min=0.002, sigma_max=700.0
    )
    with pytest.raises(PolyscoreError, match="timestep_type must be discrete; got 'continuous'"):
        noising_of(scheduler)


def test_a_remedy_is_not_another_noise():
    """A config without betas makes a DDPM scheduler all the same, of the wrong noise."""
    with pytest.raises(PolyscoreError, match=r"got EDMEulerScheduler. Wrap the model in ps\.Learned"):
        noising_of(diffusers.EDMEulerScheduler())
