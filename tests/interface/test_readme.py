"""The README's Python blocks run as they stand, in one session, in an empty folder."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_python_blocks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    session: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), session)  # our own README, not input
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "{'a1': 1.0, 'a2': 1.0, 'base': -1.0} 1.0"
    naive, fixed = float(lines[2]), float(lines[3])
    assert fixed < 0.35 < 0.4 < naive
    estimate, true = map(float, lines[4].split())
    assert abs(estimate - true) < 0.1
    assert any(line.startswith("Nothing speaks against it") for line in lines)
    assert lines[-4].startswith("Chosen: FeynmanKac(16)") and float(lines[-3]) < 0.5
    vanilla = [float(line.rsplit(" ", 1)[1]) for line in lines[-2:]]
    assert vanilla[0] > 0.8 > 0.6 > vanilla[1]  # over six other seeds: 0.94 to 1.23, and 0.22 to 0.50
    assert (tmp_path / "runs" / "family.safetensors").exists()
    assert (tmp_path / "runs" / "family.json").exists()


def test_two_commands_exist():
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo:", makefile, re.MULTILINE)
    assert re.search(r"^test:", makefile, re.MULTILINE)
