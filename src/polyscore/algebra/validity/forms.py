"""Quadratic forms v' P_k v: matrices `(M, d, d)`, or `(M, d)` where all are diagonal."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def distinct(forms: Tensor) -> Tensor:
    """Return the places of different forms: components of equal shape have equal tails."""
    kept: list[int] = []
    for k, form in enumerate(forms):
        if not any(torch.allclose(form, forms[j], rtol=1e-12, atol=0) for j in kept):
            kept.append(k)
    return torch.tensor(kept)


def minimal(forms: Tensor, most: int = 64) -> Tensor:
    """Return the places of forms that are the least in some direction: what lies above another everywhere is not."""
    kept = list(range(len(forms)))
    for k in range(len(forms) if 1 < len(forms) <= most else 0):
        others = [j for j in kept if j != k]
        if others and bool((lowest(forms[k] - forms[others]) >= 0).any()):
            kept.remove(k)
    return torch.tensor(kept)


def diagonal(form: Tensor) -> Tensor:
    """Return the diagonals, `(M, d)`."""
    return form if form.ndim == 2 else form.diagonal(dim1=-2, dim2=-1)


def spectrum(pencils: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues `(C, d)`, ascending, and eigenvectors of matrices `(C, d, d)`, or of diagonals `(C, d)`."""
    if pencils.ndim == 3:
        return tuple(torch.linalg.eigh(pencils))
    values, order = pencils.sort(-1)
    return values, order


def lowest(pencils: Tensor) -> Tensor:
    """Return the lowest eigenvalues, `(C,)`."""
    return torch.linalg.eigvalsh(pencils)[..., 0] if pencils.ndim == 3 else pencils.amin(-1)


def spans(form: Tensor) -> Tensor:
    """Return how far apart the eigenvalues of each matrix are, `(M,)`."""
    values = torch.linalg.eigvalsh(form)
    return values[..., -1] - values[..., 0]


def values_of(form: Tensor, v: Tensor) -> Tensor:
    """Return v' P_k v for columns v, `(d, n) -> (M, n)`."""
    return form @ v.square() if form.ndim == 2 else ((form @ v) * v).sum(-2)


def pull(form: Tensor, v: Tensor, shares: Tensor) -> Tensor:
    """Return sum_k share_k P_k v for columns v, `(d, n), (M, n) -> (d, n)`."""
    if form.ndim == 2:
        return (form.T @ shares) * v
    return (shares[:, None] * (form @ v)).sum(0)


def traces(form: Tensor, vectors: Tensor, soft: Tensor) -> Tensor:
    """Return tr(P_k G) with G = sum_i soft_i v_i v_i', `(C, M)`; for diagonals `vectors` is the order of the axes."""
    if form.ndim == 2:
        return torch.zeros_like(soft).scatter(-1, vectors, soft) @ form.T
    density = (vectors * soft[:, None]) @ vectors.mT
    return torch.einsum("kde,ced->ck", form, density)


def fan(dim: int, count: int = 256) -> Tensor:
    """Return unit vectors as columns, `(d, n)`: all around in the plane, at random beyond."""
    if dim == 2:
        angles = torch.arange(count, dtype=torch.float64) * (math.pi / count)
        return torch.stack([angles.cos(), angles.sin()])
    seeded = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (dim, count // 4), generator=seeded).double() * 2 - 1
    normals = torch.randn(dim, count, dtype=torch.float64, generator=seeded)
    every = torch.cat([torch.ones(dim, 1, dtype=torch.float64), signs, normals], 1)
    return every / every.norm(dim=0)
