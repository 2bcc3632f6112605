"""The answer to "can it be normalised?", and what is done with it."""

from __future__ import annotations

from dataclasses import dataclass

from polyscore.errors import ImproperError
from polyscore.notices import warn

_REMEDY = "Lower the negative exponents, raise the positive ones, or choose a wider base."


@dataclass(frozen=True)
class Validity:
    """An answer to "can it be normalised?": `proper` is True, False or None (cannot tell).

    `direction` is the slowest decay found; None where the answer needs none, or none was sought. `learned` says that
    scores are learned, of which the question is never asked.
    """

    proper: bool | None
    direction: tuple[float, ...] | None
    reason: str
    learned: bool = False

    def __bool__(self) -> bool:
        return self.proper is True

    def require(self, subject: str) -> None:
        """Raise `ImproperError` when the answer is no."""
        if self.proper is False:
            raise ImproperError(f"a composition must be normalisable; got {subject}, and {self.reason}. {_REMEDY}")

    def settle(self, subject: str) -> None:
        """Raise when the answer is no; warn when there is none. Learned scores are never asked."""
        self.require(subject)
        if self.proper is None and not self.learned:
            warn(
                f"whether {subject} can be normalised could not be told: {self.reason}. Where it cannot, samples and "
                f"evidence mean nothing. {_REMEDY}"
            )
