"""The label page in a browser: keys, clicks, undo, reloads and kills lose nothing, and nothing leaves this machine.

Needs NiceGUI, Playwright and Debian's chromium (`make test` installs it where it can); skipped with the reason where
one is missing.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from rooms.by_hand import write_rooms

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = [name for name in ("nicegui", "playwright") if importlib.util.find_spec(name) is None]
served = pytest.mark.skipif("nicegui" in MISSING, reason="the extra `web` is not installed (nicegui)")
browsed = pytest.mark.skipif(
    bool(MISSING) or CHROMIUM is None,
    reason=f"no browser to drive: {', '.join([*MISSING, *([] if CHROMIUM else ['chromium'])])} missing",
)
SIDE, WAIT = 32, 20_000
BAD = "couch+table/000001.png"
COUNTS = {"couch": 5, "empty": 3, "couch+table": 3}


def make(out: Path) -> Path:
    def image(index: int) -> np.ndarray:
        return np.random.default_rng(index).integers(0, 255, (SIDE, SIDE, 3)).astype(np.uint8)

    return write_rooms(out, COUNTS, image).path


class Server:
    """A server that was started as a user starts it."""

    def __init__(self, data: Path, *options: str, port: int = 0) -> None:
        program = "from polyscore.cli import app; app()"
        command = [sys.executable, "-c", program, "rooms", "label", str(data), "--port", str(port), *options]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", self.process.stdout.readline())
        assert found is not None, "no address was told"
        self.address, self.port = found[0], int(found[1])

    def end(self, how: int) -> None:
        self.process.send_signal(how)
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def serving(data: Path, *options: str, port: int = 0) -> Iterator[Server]:
    server = Server(data, *options, port=port)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end(signal.SIGKILL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make(tmp_path / "rooms")


def labels(data: Path) -> dict[str, bool | None]:
    found = {}
    for text in (data / "labels.jsonl").read_text().splitlines():
        one = json.loads(text)
        found[f"{one['class']}/{one['file']}"] = one["accepted"]
    return found


def ask(server: Server, path: str, **headers: str) -> tuple[int, bytes]:
    """One request, its path sent as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


class Window:
    """A browser window; what it asks for outside of this machine is noted and refused."""

    def __init__(self, browser: Any) -> None:
        self.outside: list[str] = []
        self.page = browser.new_page(viewport={"width": 1100, "height": 860})
        self.page.set_default_timeout(WAIT)
        self.page.route("**/*", self._pass)
        self.page.on("websocket", lambda socket: self._note(socket.url))
        self.page.on("console", self._hear)

    def _note(self, address: str) -> bool:
        good = urlsplit(address).hostname == "127.0.0.1" or address.startswith(("data:", "blob:"))
        if not good:
            self.outside.append(address)
        return good

    def _hear(self, message: Any) -> None:
        if "Content Security Policy" in message.text:  # the page's own policy was quicker than `_pass`
            self.outside.append(message.text)

    def _pass(self, route: Any) -> None:
        if self._note(route.request.url):
            route.continue_()
        else:
            route.abort()

    def open(self, server: Server) -> None:
        self.page.goto(server.address)
        self.ready()

    def ready(self) -> None:
        """Wait for a picture that is there, and for the line to the server."""
        self.page.wait_for_function("() => window.socket?.connected && document.getElementById('picture')?.complete")

    @property
    def shown(self) -> str:
        return str(self.page.get_attribute("#picture", "data-picture"))

    def does(self, act: Any, words: str) -> str:
        """Do something to the picture that is shown; return its name when the page says so."""
        self.ready()
        before = self.shown
        act()
        self.page.wait_for_function("words => document.getElementById('said').innerText.includes(words)", arg=words)
        return before

    def press(self, key: str, words: str) -> str:
        return self.does(lambda: self.page.keyboard.press(key), words.replace("this", self.shown))

    def click(self, what: str, words: str) -> str:
        return self.does(lambda: self.page.click(f"#{what}"), words.replace("this", self.shown))

    def count(self, name: str) -> str:
        return " ".join(self.page.locator(f'[data-class="{name}"] .count *').all_inner_texts())

    def warns(self) -> bool:
        """Whether the page says that the picture is none; it must, and only then."""
        told = "Reject it: a picture must be readable" in self.page.inner_text(".stage")
        assert told == (self.shown == BAD)
        return told


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        launched = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def window(browser: Any) -> Iterator[Window]:
    made = Window(browser)
    yield made
    made.page.close()
    assert made.outside == [], "the page asked for something outside of this machine"


@browsed
def test_labels_survive_undo_reloads_and_kills(data: Path, window: Window) -> None:
    with serving(data, "--per-class", "4") as server:
        window.open(server)
        assert "couch" in window.page.inner_text("#class") and window.count("couch") == "0 ✓ 0 ✕ 0 of 4"
        expected = {window.press("a", "this accepted, saved"): True}
        expected[window.press("ArrowLeft", "this rejected, saved")] = False
        assert labels(data) == expected, "a label was not on the disk when the page said so"
        last = window.click("reject", "this rejected, saved")
        window.press("u", "is open again")
        assert window.shown == last and labels(data) == expected | {last: None}
        window.page.reload()
        window.ready()
        assert window.shown == last and window.count("couch") == "1 ✓ 1 ✕ 2 of 4"
        expected[window.click("accept", "this accepted, saved")] = True
        server.end(signal.SIGKILL)
        assert labels(data) == expected
        with serving(data, "--per-class", "4", port=server.port) as again:
            window.open(again)
            assert window.count("couch") == "2 ✓ 1 ✕ 3 of 4" and window.shown not in expected
            window.press("Backspace", f"{last} is open again")  # of a life before
            expected[window.press("r", "this rejected, saved")] = False
            assert labels(data) == expected and expected[last] is False
            expected[window.press("ArrowRight", "this accepted, saved")] = True
            assert window.shown.startswith("empty/"), "four were wanted of the first class"
            again.end(signal.SIGINT)
            assert labels(data) == expected


@browsed
def test_the_rule_a_choice_a_bad_picture_a_second_page_and_the_end(data: Path, window: Window, browser: Any) -> None:
    (data / BAD).write_bytes(b"no picture")
    with serving(data, "--class", "couch+table", "--class", "empty") as server:
        window.open(server)
        card = " ".join(window.page.inner_text(".right").split())
        for words in ("one couch", "one table", "a painting", "cut by the picture's edge", "no noise", "0 of 3"):
            assert words in card
        bad = [window.warns()]
        # Two answers in one moment: the second was given before anybody saw the next picture.
        window.does(lambda: window.page.evaluate("() => { answer('accept'); answer('accept') }"), "accepted, saved")
        window.page.click('[data-class="empty"]')
        window.page.wait_for_function("() => document.getElementById('class').innerText === 'empty'")
        assert len(labels(data)) == 1 and "one couch" not in window.page.inner_text(".right")
        other = Window(browser)
        other.open(server)
        bad.append(other.warns())
        other.press("r", "this rejected, saved")  # couch+table, in another page
        window.press("a", "this accepted, saved")
        assert len(labels(data)) == 3 and window.count("couch+table") == "1 ✓ 1 ✕ 2 of 3"
        for _ in range(3):
            bad.append(window.warns())
            window.press("r", "this rejected, saved")
        window.page.wait_for_selector("text=All labelled")
        other.page.close()
        assert other.outside == [] and any(bad)
        assert len(labels(data)) == 6 and None not in labels(data).values()


@served
def test_a_page_says_what_is_wrong_with_the_labels(data: Path) -> None:
    with serving(data) as server:
        (data / "labels.jsonl").unlink(missing_ok=True)
        os.mkfifo(data / "labels.jsonl")
        asked = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        asked.request("GET", "/")
        answer = asked.getresponse()
        assert answer.status == 200 and "labels must be in a file of the dataset" in answer.read().decode()


@served
def test_only_pictures_of_the_dataset_and_only_this_machine(data: Path, tmp_path: Path) -> None:
    picture = (data / "couch" / "000000.png").read_bytes()
    folded = str(tmp_path).replace("/", "%2f")
    (tmp_path / "secret.png").write_bytes(b"\x89PNG secret")
    (data / "couch" / "link.png").symlink_to(tmp_path / "secret.png")
    with serving(data) as server:
        assert ask(server, "/picture/couch/000000.png") == (200, picture)
        assert ask(server, "/picture/couch%2Btable/000000.png")[0] == 200
        for path in (
            "/picture/couch/../../secret.png", "/picture/couch/..%2f..%2fsecret.png", "/picture/../secret.png",
            "/picture/%2e%2e/secret.png", "/picture/%252e%252e/secret.png",
            "/picture/couch/%2e%2e%2f%2e%2e%2fsecret.png",
            f"/picture/couch/{tmp_path}/secret.png", f"/picture/couch/{folded}%2fsecret.png",
            f"/picture/{folded}/secret.png", "/picture//secret.png", "/picture/couch/link.png",
            "/picture/couch/rooms.jsonl", "/picture/couch/000000.png%00", "/picture/couch/..%5c..%5csecret.png",
            "/dataset.json", "/labels.jsonl", "/couch/000000.png", "/docs", "/openapi.json",
        ):  # fmt: skip
            status, content = ask(server, path)
            assert status == 404 and b"secret" not in content.replace(b"secret.png", b""), path
        for headers in ({"Host": "evil.example"}, {"Host": ""}, {"Origin": "https://evil.example"}, {"Host": "[::1"}):
            for path in ("/", "/picture/couch/000000.png"):
                assert ask(server, path, **headers)[0] in (400, 403)
        local = f"127.0.0.1:{server.port}"
        hosts = (f"evil.example@{local}", f"{local}, evil.example", f"{local}#.evil.example")
        strange = [*({"Host": host} for host in hosts), {"Host": local, "Origin": f"file://{local}"}]
        embedded = [{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"} for site in ("cross-site", "same-site")]
        for headers in (*strange, *embedded):
            assert ask(server, "/picture/couch/000000.png", **headers)[0] in (400, 403), headers
        assert ask(server, "/", Host=local, Origin=f"http://{local}")[0] == 200
        followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        for headers in (followed, {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "no-cors"}):
            assert ask(server, "/", **headers)[0] == 200, headers
        listening = Path("/proc/net/tcp").read_text() if Path("/proc/net/tcp").exists() else ""
        assert f"00000000:{server.port:04X} 00000000:0000 0A" not in listening, "it listens to other machines"


@served
@pytest.mark.parametrize("sent", [None, 3, "accept", ["accept"], [{"what": "accept"}]])
def test_messages_that_no_key_sends_are_passed_over(sent: object) -> None:
    from polyscore.rooms.label_page import _Page

    _Page.__new__(_Page)._answer(sent)  # with neither a dataset nor labels that it could touch
