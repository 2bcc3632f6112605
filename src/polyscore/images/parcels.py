"""A store as one file, to travel: a zip of its records, protocols and contact sheets, believed line by line.

What comes out is read as any store is: a line that is not what it says is passed over. Members with other names, or
larger than a store's files can be, are refused before anything is written.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from pathlib import Path

from polyscore.errors import PolyscoreError, require
from polyscore.experiments.lock import StoreError
from polyscore.experiments.store import Store
from polyscore.files.atomic import write_atomically
from polyscore.files.regular import open_regular
from polyscore.files.zips import DAMAGED
from polyscore.images import sheets
from polyscore.limits import show_bytes

_MEMBER = re.compile(
    r"store\.json|protocols/[0-9a-f]{16}\.json|(records|sheets)/[A-Za-z0-9][A-Za-z0-9_.-]{0,200}\.jsonl"
)
_LARGEST = 512 * 2**20  # bytes of all members
_EPOCH = (1980, 1, 1, 0, 0, 0)
_FOLDERS = (("protocols", ".json"), ("records", ".jsonl"), ("sheets", ".jsonl"))


def pack(store: Store, path: Path | str) -> Path:
    """Write a store as one zip file."""
    files = [store.path / "store.json", *(file for folder, end in _FOLDERS for file in store.files(folder, end))]
    require(files[0].exists(), "a store", "hold results before it is packed", str(store.path), "Run something first.")

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as parcel:
            for file in files:
                name = file.relative_to(store.path).as_posix()
                parcel.writestr(zipfile.ZipInfo(name, _EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)

    return write_atomically(path, write)


def adopt(path: Path | str, store: Store) -> int:
    """Take over what a packed store holds; return how many records were new."""
    with tempfile.TemporaryDirectory() as folder:
        _unzip(Path(path), Path(folder))
        other = Store(Path(folder) / "store")
        with store.writing():
            new = store.merge(other)
            sheets.merge(store, other)
    return new


def _unzip(path: Path, folder: Path) -> None:
    try:
        with open(path, "rb", opener=open_regular) as opened, zipfile.ZipFile(opened) as parcel:
            _require_members(parcel.infolist(), path)
            parcel.extractall(folder / "store")
    except PolyscoreError:
        raise
    except DAMAGED as error:
        raise StoreError(f"a packed store must be a whole zip file; {path} is not ({error}). Copy it again.") from error


def _require_members(members: list[zipfile.ZipInfo], path: Path) -> None:
    """Refuse what is no store's, and what would fill the disk."""
    strange = [info.filename for info in members if not _MEMBER.fullmatch(info.filename)]
    names, size = [info.filename for info in members], sum(info.file_size for info in members)
    if strange or "store.json" not in names or len(set(names)) < len(names) or size > _LARGEST:
        found = repr((strange or [""])[0][:100]) if strange else f"{len(names)} files, {show_bytes(size)}"
        raise StoreError(
            f"a packed store must hold records, protocols and sheets only; {path} holds {found}. It was not used."
        )
