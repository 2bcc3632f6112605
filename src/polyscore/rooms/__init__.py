"""Living rooms with and without a couch, a painting, a table: rendered by anyone, labelled exactly.

from polyscore import rooms

rooms.render("runs/rooms", count=100)                   # needs the extra `render`
data = rooms.Dataset("runs/rooms")
data.classes, data.images("couch"), data.boxes("couch")
rooms.generate("runs/flux", count=1500)                 # FLUX.1-schnell; needs the extra `images`, and a GPU
rooms.select("runs/flux", "runs/selected")              # after `polyscore rooms label runs/flux`
rooms.pack(data, "runs/shards"); rooms.unpack("runs/shards", "runs/copy")
"""

from polyscore.rooms.classes import CLASSES, OBJECTS
from polyscore.rooms.dataset import Dataset, Record
from polyscore.rooms.drawing import Look
from polyscore.rooms.generating import Drawing, generate
from polyscore.rooms.making import render
from polyscore.rooms.selecting import select
from polyscore.rooms.selector import Selector
from polyscore.rooms.shards import pack, unpack
from polyscore.rooms.sheet import contact_sheet

__all__ = ["CLASSES", "OBJECTS", "Dataset", "Drawing", "Look", "Record", "Selector", "contact_sheet", "generate",
           "pack", "render", "select", "unpack"]  # fmt: skip
