"""Experiments: what to compute (cells), where results live (store), who computes them (runner), and reports."""
