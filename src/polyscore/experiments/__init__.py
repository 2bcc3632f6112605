"""Experiments: settings, published values, and what is computed beside them."""
