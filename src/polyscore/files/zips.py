"""Zip files that somebody else packed: what Python raises of them, whatever is wrong."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib

# ValueError: names that are no text. RuntimeError: an encrypted member, a method that Python does not know, recursion.
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, OSError, EOFError, KeyError, ValueError,
           RuntimeError)  # fmt: skip
