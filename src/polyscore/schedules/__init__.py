"""Noise schedules: `Schedule` is what one is, and how another joins; `kinds` and `stepped` are those that there are."""

from polyscore.schedules.kinds import DDPM, VP, Cosine, LinearFlow
from polyscore.schedules.schedule import SCHEDULES, T_MAX, T_MIN, Schedule, check_consistent, from_dict
from polyscore.schedules.stepped import SPACINGS, Flow, Stepped, Tabulated, signal

__all__ = [
    "DDPM",
    "SCHEDULES",
    "SPACINGS",
    "T_MAX",
    "T_MIN",
    "VP",
    "Cosine",
    "Flow",
    "LinearFlow",
    "Schedule",
    "Stepped",
    "Tabulated",
    "check_consistent",
    "from_dict",
    "signal",
]
