"""A composition prepared for a grid of times: `prepare(q, times, like)` returns what an inner loop calls."""

from polyscore.fields.field import Field, row
from polyscore.fields.gaussian import GaussianField
from polyscore.fields.mixture import MixtureField
from polyscore.fields.network import NetworkField
from polyscore.fields.pieces import InPieces, in_pieces
from polyscore.fields.prepare import prepare
from polyscore.fields.scores import ScoreField
from polyscore.fields.unlike import UnlikeField

__all__ = [
    "Field",
    "GaussianField",
    "InPieces",
    "MixtureField",
    "NetworkField",
    "ScoreField",
    "UnlikeField",
    "in_pieces",
    "prepare",
    "row",
]
