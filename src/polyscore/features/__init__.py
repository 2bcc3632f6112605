"""Pretrained image features: an image becomes a vector in which distances mean something."""
