"""Models of diffusers as families: any U-Net, transformer or pipeline with its scheduler can be composed."""

from polyscore.pipelines.door import from_diffusers
from polyscore.pipelines.family import Diffusers

__all__ = ["Diffusers", "from_diffusers"]
