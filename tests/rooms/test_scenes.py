"""Scenes as plain values: where things stand, what is seen, which flaws; no renderer needed."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from scipy import stats

from polyscore.errors import PolyscoreError
from polyscore.rooms import art, drawing, flaws, scene, textures
from polyscore.rooms.camera import showing
from polyscore.rooms.classes import CLASSES, OBJECTS, generator, named
from polyscore.rooms.materials import linear
from polyscore.rooms.meshes import Mesh, ball, box, lathe, rod, rotation, wave
from polyscore.rooms.parts import Part
from polyscore.rooms.scene import Placed, Scene
from polyscore.rooms.tracing import develop
from polyscore.rooms.visibility import Seen, seen

ROOMS = 150
FALSE_ALARM = 1e-4  # of each comparison of two positions


@functools.cache
def made_once(name: str, index: int) -> Scene:
    return scene.draw(generator(5, name, index), CLASSES[name])


def scenes(name: str, count: int = ROOMS) -> list[Scene]:
    return [made_once(name, index) for index in range(count)]


_parts: dict[int, tuple[Placed, list[Part]]] = {}


def parts(placed: Placed) -> list[Part]:
    """Its meshes, made once; it is held along with them, so that no other object gets its number."""
    if id(placed) not in _parts:
        _parts[id(placed)] = placed, placed.parts()
    return _parts[id(placed)][1]


def bounds(placed: Placed) -> tuple[np.ndarray, np.ndarray]:
    meshes = [part.mesh for part in parts(placed)]
    return np.min([mesh.low for mesh in meshes], 0), np.max([mesh.high for mesh in meshes], 0)


def every() -> list[Scene]:
    return [made for name in CLASSES for made in scenes(name, 40)]


def volume(mesh: Mesh) -> float:
    a, b, c = (mesh.points[mesh.faces[:, k]] for k in range(3))
    return float(np.einsum("ij,ij->", a, np.cross(b, c)) / 6)


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (box((1, 2, 3), (2, 4, 3.5), 1e-4), 1.0),
        (rod((0, 0, 0), (1, 2, 2), 0.1, sides=96), math.pi * 0.01 * 3),
        (rod((0, 0, 1), (0, 0, 0), 0.2, 0.5, sides=96), math.pi / 3 * (0.04 + 0.02 + 0.01)),
        (ball((1, 1, 1), 0.5, sides=96), math.pi / 6),
    ],
)
def test_shapes_have_their_volume_and_face_outwards(mesh: Mesh, expected: float) -> None:
    """By the divergence theorem: a face turned inside out would take its part away."""
    assert volume(mesh) == pytest.approx(expected, rel=4e-3)
    corners = mesh.points[mesh.faces]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    good = np.linalg.norm(normals, axis=1) > 1e-9
    assert (np.einsum("ij,ij->i", normals, mesh.normals[mesh.faces].sum(1))[good] > 0).all()
    np.testing.assert_allclose(np.linalg.norm(mesh.normals, axis=1), 1, atol=1e-9)


def test_rounding_and_swelling_change_a_box_as_they_should() -> None:
    sharp, soft = box((0, 0, 0), (1, 1, 1), 1e-4), box((0, 0, 0), (1, 1, 1), 0.2)
    r = 0.2
    rounded = 1 - (8 - 4 * math.pi / 3) * r**3 - 12 * (1 - math.pi / 4) * r**2 * (1 - 2 * r)
    assert volume(soft) == pytest.approx(rounded, rel=0.02)
    swollen = box((0, 0, 0), (1, 1, 1), 1e-4, bulge=0.1)
    assert volume(swollen) > volume(sharp) and swollen.high.max() == pytest.approx(1.1, abs=0.01)


def test_normals_of_folds_and_cushions_are_those_of_their_surfaces() -> None:
    """y = d sin(2 pi n x / w), and a side lifted by b (1 - u^2) (1 - v^2)."""
    cloth = wave(1.5, 2.0, 9, 0.06)
    turn = 2 * math.pi * 9 / 1.5
    slope = 0.06 * turn * np.cos(turn * cloth.points[:, 0])
    np.testing.assert_allclose(cloth.normals[:, 0] / cloth.normals[:, 1], -slope, atol=1e-9)
    cushion = box((-0.5, -0.4, -0.1), (0.5, 0.4, 0.1), 1e-4, bulge=0.2)
    u, v = (cushion.points[:, k] / half for k, half in ((0, 0.5), (1, 0.4)))
    top = (cushion.points[:, 2] > 0.1001) & (np.abs(u) < 0.9) & (np.abs(v) < 0.9)
    np.testing.assert_allclose(cushion.points[top, 2], 0.1 + 0.2 * ((1 - u**2) * (1 - v**2))[top], atol=1e-9)
    tilt = np.stack([2 * u * (1 - v**2) / 0.5, 2 * v * (1 - u**2) / 0.4], 1) * 0.2
    np.testing.assert_allclose(cushion.normals[top, :2] / cushion.normals[top, 2:], tilt[top], atol=1e-9)
    assert top.sum() > 8


def test_a_lathe_with_corners_keeps_its_profile() -> None:
    drum = lathe([(1e-6, 0), (0.5, 0), (0.5, 1), (1e-6, 1)], 96, smooth=False)
    assert volume(drum) == pytest.approx(math.pi / 4, rel=4e-3)
    np.testing.assert_allclose(rotation(math.pi / 2) @ [1, 0, 0], [0, 1, 0], atol=1e-12)


def test_a_camera_shows_what_it_was_asked_to() -> None:
    camera = showing(0.3, 4.2, 1.4, 0.0, floor=2.4, top=2.5)
    lowest, highest = camera.project(np.array([[0.3, 2.4, 0.0], [0.3, 0.0, 2.5]]))
    np.testing.assert_allclose([lowest, highest], [[0.5, 1.0], [0.5, 0.0]], atol=1e-9)
    assert camera.floor == pytest.approx(2.4)
    level = showing(0.3, 4.2, 1.4, 0.2, 2.4, 2.5)
    flat = np.array([[x, 1.0, level.z - 3.2 * math.tan(level.pitch) / math.cos(level.yaw)] for x in level.reach(1.0)])
    assert np.abs(level.project(flat)[:, 0] - [1, 0]).max() < 0.04  # larger x is further to the left


def test_nothing_goes_through_a_wall_and_all_of_it_is_in_the_picture() -> None:
    for made in every():
        room = made.room
        for placed in made.objects.values():
            low, high = bounds(placed)
            assert (low >= [-room.width / 2, 0, -1e-3]).all() and (
                high <= [room.width / 2, room.depth, room.height]
            ).all()
            assert high[1] < made.camera.y - 0.8, "the camera is inside of something"
            points = np.concatenate([part.mesh.points for part in parts(placed)])
            inside = made.camera.project(points)
            assert inside.min() > -0.03 and inside.max() < 1.03


def test_rooms_are_whole() -> None:
    for made in every():
        room, camera = made.room, made.camera
        assert abs(camera.x) < room.width / 2 and camera.y < room.depth and camera.z < room.height
        for part in room.parts:
            assert np.isfinite(part.mesh.points).all() and part.mesh.faces.max() < len(part.mesh.points)
            assert part.mesh.low[2] > -1e-6 and part.mesh.high[2] < room.height + 1e-6
        assert sum(part.material.glows for part in room.parts) >= 2


def test_a_couch_stands_on_the_stage_and_a_painting_hangs_above_it() -> None:
    for made in scenes("couch+painting"):
        low, high = bounds(made.objects["couch"])
        assert low[0] > made.room.stage[0] - 0.16 and high[0] < made.room.stage[1] + 0.16
        assert low[2] == pytest.approx(0, abs=1e-6), "it floats"
        assert bounds(made.objects["painting"])[0][2] > high[2] - 0.05


def test_tables_and_couches_share_no_floor() -> None:
    for made in scenes("couch+table"):
        low, high = bounds(made.objects["table"])
        for part in parts(made.objects["couch"]):  # those of a chaise are before or beside; its cover is one mesh
            hidden = (part.mesh.points[:, :2] > low[:2]).all(1) & (part.mesh.points[:, :2] < high[:2]).all(1)
            assert not hidden.any()
        assert bounds(made.objects["table"])[0][2] == pytest.approx(0, abs=1e-3)


def middles(name: str, thing: str) -> np.ndarray:
    """Where a thing's middle is: in the room, x and depth or height; and in the picture."""
    found = []
    for made in scenes(name):
        low, high = bounds(made.objects[thing])
        middle = (low + high) / 2
        found.append([*middle, *made.camera.project(middle[None])[0]])
    return np.array(found)


def test_paintings_do_not_care_for_couches() -> None:
    """Kolmogorov and Smirnov: x, height, and both coordinates in the picture; all four together alarm in 0.04 %."""
    alone, above = middles("painting", "painting"), middles("couch+painting", "painting")
    for column in (0, 2, 3, 4):
        assert stats.ks_2samp(alone[:, column], above[:, column]).pvalue > FALSE_ALARM


def test_tables_do() -> None:
    """With a couch a table comes forward; a test that alarms in 0.01 % by chance sees it."""
    alone, before = middles("table", "table"), middles("couch+table", "table")
    assert stats.ks_2samp(alone[:, 1], before[:, 1]).pvalue < FALSE_ALARM
    assert before[:, 1].mean() > alone[:, 1].mean() + 0.15
    couch = middles("couch+table", "couch")
    assert stats.pearsonr(couch[:, 0], before[:, 0]).pvalue < FALSE_ALARM, "it does not follow the couch"


def test_a_room_and_an_object_are_the_same_whatever_else_is_there() -> None:
    one, other = (
        scene.draw(generator(0, "any", 3), objects) for objects in ({"painting"}, {"couch", "painting", "table"})
    )
    assert one.room == other.room and one.objects["painting"] == other.objects["painting"]


def test_scenes_are_functions_of_seed_class_and_index() -> None:
    made, again = (drawing.compose(1, "couch+table", 4, 0, None) for _ in range(2))
    assert made == again
    others = [(2, "couch+table", 4, 0), (1, "couch", 4, 0), (1, "couch+table", 5, 0), (1, "couch+table", 4, 1)]
    assert all(drawing.compose(*other, None).room != made.room for other in others)


def test_furniture_varies() -> None:
    couches = [made.objects["couch"].thing for made in scenes("couch+table")]
    tables = [made.objects["table"].thing for made in scenes("couch+table")]
    assert {couch.arms for couch in couches} == {"none", "slim", "wide", "rolled"}
    assert {couch.seats for couch in couches} == {2, 3, 4} and {couch.chaise for couch in couches} == {-1, 0, 1}
    assert {table.legs for table in tables} == {"straight", "splayed", "pedestal", "sled", "block"}
    assert {table.round for table in tables} == {True, False}


@pytest.mark.parametrize("floor", textures.FLOORS)
def test_floors_are_colours(floor: functools.partial) -> None:
    for k in range(5):
        texture = floor(np.random.default_rng(k)).texture
        assert texture.dtype == np.float32 and texture.min() > 0 and texture.max() < 1 and texture.std() > 1e-3


@pytest.mark.parametrize("style", art.STYLES)
def test_pictures_are_colours(style: functools.partial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(art, "STYLES", (style,))
    for k in range(5):
        picture = art.picture(np.random.default_rng(k), 0.5 + 0.3 * k)
        assert picture.min() > 0 and picture.max() < 1 and picture.std() > 1e-3
        assert picture.shape[1] / picture.shape[0] == pytest.approx(0.5 + 0.3 * k, abs=0.01)


def test_a_picture_is_exposed_for_its_median_light_and_read_back_by_the_same_curve() -> None:
    """Half of the median light is 0.425 of white; the standard of sRGB has 0.6836 for that, and 0.5 for 0.2140."""
    light = np.full((3, 3, 3), 2.0, np.float32)
    light[0, 0], light[0, 1] = 1.0, 400.0
    picture = develop(light, np.ones_like(light), 1.0)
    assert picture[0, 0].tolist() == [round(255 * 0.6836)] * 3 and picture[0, 1].tolist() == [255] * 3
    assert (develop(10 * light, np.ones_like(light), 1.0) == picture).all()
    np.testing.assert_allclose(linear([0.02, 0.5, 0.6836, 1.0]), [0.02 / 12.92, 0.21404, 0.425, 1.0], atol=2e-4)


def test_boxes_and_shares_of_numbered_pixels() -> None:
    number = np.full((8, 10), -1)
    number[2:5, 3:7] = 1
    number[4, 6] = 2
    found = seen(number, ["room", "couch", "table"])
    assert found == {"couch": Seen((0.3, 0.25, 0.7, 0.625), 11 / 80), "table": Seen((0.6, 0.5, 0.7, 0.625), 1 / 80)}
    assert Seen((0.3, 0.25, 0.7, 0.625), 0.1).pixels(16) == (4, 4, 12, 10)


def test_classes_have_names() -> None:
    assert [named(objects) for objects in CLASSES.values()] == list(CLASSES)
    with pytest.raises(PolyscoreError, match=r"must be one of empty, couch.*got 'couches'\. Did you mean 'couch'"):
        CLASSES["couches"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.37, 1.0])
def test_the_share_of_flaws_is_the_one_stated(share: float) -> None:
    """Golden steps: every first n rooms hold n * share flawed ones, give or take the logarithm of n."""
    for n in (10, 100, 1000):
        count = sum(drawing.flaw_of(0, "couch", k, share) is not None for k in range(n))
        assert abs(count - n * share) <= 1 + math.log(n) / 2


def test_flaws_are_possible_and_all_kinds_come() -> None:
    for objects in CLASSES.values():
        kinds = set()
        for k in range(60):
            flaw = flaws.draw(np.random.default_rng(k), objects)
            kinds.add(flaw.kind)
            held = flaws.contents(objects, flaw)
            assert (len(held) - len(objects)) == {"missing": -1, "extra": 1}.get(flaw.kind, 0)
            assert flaw.kind not in ("missing", "cut") or flaw.object in objects
            assert flaw.why and set(held) <= set(OBJECTS)
        assert kinds == (set(flaws.KINDS) if objects else {"extra", "noise"})


@pytest.mark.parametrize(("resolution", "looked"), [(8, 128), (32, 128), (64, 128), (100, 200), (256, 512), (512, 512)])
def test_rooms_are_looked_at_finely_enough(resolution: int, looked: int) -> None:
    """A multiple of the resolution, on 128 x 128 pixels at least; twice as fine where edges are smoothed."""
    assert drawing.finer(resolution) == looked


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("share", [0.35, 0.65])
def test_a_cut_puts_the_stated_share_outside(share: float, left: bool) -> None:
    """Of the couch's width, looked at along its middle; the edge of a picture that looks down is not quite upright."""
    for made in scenes("couch", 20):
        cut = flaws.cut(made, flaws.Flaw("cut", "couch", share), left)
        points = np.concatenate([part.mesh.points for part in parts(made.objects["couch"])])
        (low, high), middle = (points[:, 0].min(), points[:, 0].max()), points.mean(0)
        line = np.array([[x, middle[1], middle[2]] for x in np.linspace(low, high, 400)])
        across = cut.camera.project(line)[:, 0]
        assert np.mean(across < 0 if left else across > 1) == pytest.approx(share, abs=0.1)


def test_noise_has_its_deviation() -> None:
    grey = np.full((64, 64, 3), 128, np.uint8)
    noisy = flaws.noisy(grey, 0.1, np.random.default_rng(0))
    # 12,288 draws: the deviation's own is 0.6 %, so 4 % alarm once in 10^10
    assert noisy.std() / 255 == pytest.approx(0.1, rel=0.04)


@pytest.mark.parametrize(("seed", "index"), [(0, 1668), (123, 869)])
def test_a_painting_may_fill_its_wall(seed, index):
    """Both ends of its place are then the same but for a rounding, and NumPy refuses ends in the wrong order."""
    painting = drawing.compose(seed, "couch+painting", index, 0, None).objects["painting"]
    assert np.isfinite(painting.x)
