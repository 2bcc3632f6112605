"""From a scene to a picture: path tracing by Mitsuba, denoising by Open Image Denoise, then a film's response.

Everything is one process and one thread, so that a room has the same bytes whoever else is at work; rooms run side by
side in processes.
"""

from __future__ import annotations

import math
import os
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyscore.extras import require_found
from polyscore.rooms.camera import Camera
from polyscore.rooms.materials import Material
from polyscore.rooms.meshes import Mesh
from polyscore.rooms.parts import Part
from polyscore.rooms.scene import Scene

Image = NDArray[np.uint8]
Floats = NDArray[np.float32]
_DEPTH = 8  # segments of a path; most end earlier, by roulette
_KEY = 0.85  # how bright white shall be in a room's median light
_KNEE = 0.75  # brightness from which on the film saturates softly


@cache
def _mitsuba() -> Any:
    """Mitsuba, without LLVM and with one thread."""
    require_installed()
    import drjit
    import mitsuba

    mitsuba.set_variant("scalar_rgb")
    mitsuba.set_log_level(mitsuba.LogLevel.Error)
    drjit.set_thread_count(1)
    return mitsuba


def require_installed() -> None:
    """Raise `ArgumentError` unless the extra `render` is installed."""
    require_found(("mitsuba", "pyoidn"), "rendering", "render")


def as_mitsuba(scene: Scene) -> Any:
    """Return Mitsuba's scene, its shapes in the order of `scene.parts()`."""
    mi = _mitsuba()
    shapes = {f"shape{k:03}": _shape(mi, part) for k, part in enumerate(scene.parts())}
    return mi.load_dict({"type": "scene", **shapes})


def _shape(mi: Any, part: Part) -> Any:
    properties = mi.Properties()
    properties["bsdf"] = mi.load_dict(_surface(mi, part.material))
    if part.material.glows:
        properties["emitter"] = mi.load_dict({"type": "area", "radiance": _reflectance(mi, part.material)})
    return _mesh(mi, part.mesh, part.material, properties)


def _mesh(mi: Any, mesh: Mesh, material: Material, properties: Any) -> Any:
    made = mi.Mesh("part", len(mesh.points), len(mesh.faces), properties, True, True)
    values = mi.traverse(made)
    values["vertex_positions"] = mesh.points.astype(np.float32).ravel()
    values["vertex_normals"] = mesh.normals.astype(np.float32).ravel()
    values["vertex_texcoords"] = ((0, 1) + mesh.uv / material.size * (1, -1)).astype(np.float32).ravel()
    values["faces"] = mesh.faces.astype(np.uint32).ravel()
    values.update()
    return made


def _surface(mi: Any, material: Material) -> dict[str, Any]:
    """Matt below; above, with weight `gloss`, a rough mirror: cheaper than a coat with Fresnel's law."""
    matt = {
        "type": "diffuse",
        "reflectance": {"type": "rgb", "value": 0.0} if material.glows else _reflectance(mi, material),
    }
    if material.glows or not material.gloss:
        return {"type": "twosided", "bsdf": matt}
    white = {"type": "rgb", "value": material.colour if material.gloss > 0.3 else 1.0}
    coat = {"type": "roughconductor", "material": "none", "alpha": material.rough, "specular_reflectance": white}
    return {"type": "twosided", "bsdf": {"type": "blendbsdf", "weight": material.gloss, "a": matt, "b": coat}}


def _reflectance(mi: Any, material: Material) -> dict[str, Any]:
    if material.texture is None:
        return {"type": "rgb", "value": list(material.colour)}
    return {"type": "bitmap", "bitmap": mi.Bitmap(np.ascontiguousarray(material.texture)), "raw": True}


def _sensor(mi: Any, camera: Camera, resolution: int, samples: int) -> Any:
    position, ahead = camera.position, camera.axes[2]
    film = {"type": "hdrfilm", "width": resolution, "height": resolution, "rfilter": {"type": "box"},
            "component_format": "float32", "pixel_format": "rgb"}  # fmt: skip
    return mi.load_dict({
        "type": "perspective", "fov": math.degrees(camera.fov), "near_clip": 0.01, "far_clip": 100.0,
        "to_world": mi.ScalarTransform4f().look_at(position.tolist(), (position + ahead).tolist(), [0, 0, 1]),
        "film": film, "sampler": {"type": "independent", "sample_count": samples},
    })  # fmt: skip


def trace(loaded: Any, camera: Camera, resolution: int, samples: int, seed: int) -> Floats:
    """Return the light that falls into each pixel, (resolution, resolution, 3), linear and noisy."""
    mi = _mitsuba()
    integrator = mi.load_dict({"type": "path", "max_depth": _DEPTH, "rr_depth": 3, "block_size": 32})
    sensor = _sensor(mi, camera, resolution, samples)
    return np.array(mi.render(loaded, sensor=sensor, integrator=integrator, spp=samples, seed=seed), dtype=np.float32)


class Layers(NamedTuple):
    """What each pixel shows, without light.

    Attributes:
        albedo, normal: (H, W, 3).
        number: that of the part in `scene.parts()`, (H, W); -1 is none.
    """

    albedo: Floats
    normal: Floats
    number: NDArray[np.int64]


def layers(loaded: Any, camera: Camera, resolution: int) -> Layers:
    """Return what is seen where, one ray a pixel.

    A pass of its own: asking for this along with the light would take three times as long as the light alone.
    """
    mi = _mitsuba()
    integrator = mi.load_dict({"type": "aov", "aovs": "a:albedo,n:sh_normal,i:shape_index", "block_size": 32})
    sensor = _sensor(mi, camera, resolution, 1)
    seen = np.array(mi.render(loaded, sensor=sensor, integrator=integrator, spp=1, seed=0), dtype=np.float32)
    return Layers(seen[..., :3], seen[..., 3:6], np.rint(seen[..., 6]).astype(np.int64) - _first())


@cache
def _first() -> int:
    """The number that Mitsuba gives to a scene's first shape: 1 in some versions, 0 in others."""
    mi = _mitsuba()
    around = mi.load_dict({"type": "scene", "shape": {"type": "sphere", "radius": 10.0}})
    integrator = mi.load_dict({"type": "aov", "aovs": "i:shape_index"})
    sensor = _sensor(mi, Camera(0, 0, 0, 0, 0, 1), 1, 1)
    return round(float(np.array(mi.render(around, sensor=sensor, integrator=integrator, spp=1, seed=0)).max()))


@cache
def _denoiser(process: int) -> tuple[Any, Any, Any]:
    """The denoiser of a process: what it computes with does not survive a fork, after which it would wait for ever."""
    require_installed()
    import pyoidn

    device = pyoidn.Device()
    device.set_int("numThreads", 1)
    device.set_bool("setAffinity", False)
    device.commit()
    return pyoidn, device, pyoidn.Filter(device, "RT")


def denoise(colour: Floats, albedo: Floats, normal: Floats) -> Floats:
    """Return colour (H, W, 3) without noise."""
    pyoidn, device, rule = _denoiser(os.getpid())
    names = ("color", "albedo", "normal", "output")
    images = [np.ascontiguousarray(image) for image in (colour, albedo, normal, np.empty_like(colour))]
    for name, image in zip(names, images, strict=True):
        rule.set_image(name, image, pyoidn.OIDN_FORMAT_FLOAT3)
    rule.set_bool("hdr", True)
    rule.commit()
    rule.execute()
    if (error := device.get_error()) is not None:
        raise RuntimeError(f"Open Image Denoise failed: {error}")
    return images[-1]


def develop(colour: Floats, albedo: Floats, brightness: float) -> Image:
    """Return a picture as a camera would take it: exposed for its median light, saturating softly, sRGB."""
    light = colour.mean(-1) / np.maximum(albedo.mean(-1), 0.05)
    exposed = np.maximum(colour, 0) * (brightness * _KEY / max(float(np.median(light)), 1e-6))
    above = np.maximum(exposed - _KNEE, 0)
    film = np.minimum(exposed, _KNEE) + (1 - _KNEE) * (1 - np.exp(-above / (1 - _KNEE)))
    screen = np.where(film <= 0.0031308, 12.92 * film, 1.055 * film ** (1 / 2.4) - 0.055)
    return np.asarray(np.clip(np.rint(255 * screen), 0, 255), dtype=np.uint8)
