"""The tables that were counted on a CPU: the stored records are those that the stages of their spec ask for."""

from pathlib import Path
from types import SimpleNamespace

from polyscore.experiments.store import Store
from polyscore.images import sheets
from polyscore.paper.images import specs
from polyscore.paper.images.reading import rows

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "benchmarks" / "specs" / "images-cpu.yaml"


def test_the_store_holds_what_the_spec_asks_for():
    """Keys hash everything that decides a result; of the rooms, which are not stored, their hash and number are."""
    store = Store(ROOT / "results" / "images-cpu")
    found = rows(store)
    ((rooms, size),) = {(row.content["rooms"], store.records[row.key].cell.train_size) for row in found}
    blocks = [block for name in ("cpu", "cpu-more") for block in specs.stage(name, SPEC)]
    asked = [one for block in blocks for one in block.experiments(SimpleNamespace(digest=rooms, size=size))]
    assert all(not store.missing(one.cells(), one.key) for one in asked)
    assert {one.key(cell) for one in asked for cell in one.cells()} == {row.key for row in found}
    assert set(sheets.sheets(store)) == {row.key for row in found}
