"""Noise schedules: `Schedule` is what one is, and how another joins; `kinds` are those that there are."""

from polyscore.schedules.kinds import DDPM, VP, Cosine, LinearFlow
from polyscore.schedules.schedule import SCHEDULES, T_MAX, T_MIN, Schedule, check_consistent, from_dict

__all__ = [
    "DDPM",
    "SCHEDULES",
    "T_MAX",
    "T_MIN",
    "VP",
    "Cosine",
    "LinearFlow",
    "Schedule",
    "check_consistent",
    "from_dict",
]
