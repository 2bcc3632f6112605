"""Models of diffusers as families: any U-Net or pipeline with its scheduler can be composed."""
