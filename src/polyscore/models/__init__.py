"""Learned scores: any model, networks, ensembles, and their files."""
