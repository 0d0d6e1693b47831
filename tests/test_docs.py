"""What the documentation says runs: every Python block of a page, in order, on the tiny pair and clip."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#]+)\)|`((?:src|tests|docs)/[\w/.]+)`")


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


RUN = ("README.md", "docs/adding_a_drafter.md", "docs/adding_a_head.md", "docs/adding_a_vlm.md")


@pytest.mark.parametrize("page", RUN)
def test_python_blocks_run(page, pair, clip, capsys):
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert blocks
    code = "\n".join(blocks)
    ours = {"reference": pair.target, "event": pair.event, "clip.mp4": clip.video, "clip.h5": clip.events}
    ours |= {"demo/scene-2000000.mp4": clip.video, "demo/scene-2000000.h5": clip.events}
    for name, path in ours.items():
        code = code.replace(f'"{name}"', repr(str(path)))
    exec(compile(code, page, "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.strip()


def test_pages_name_files_that_exist():
    for page in pages():
        for link, path in LINK.findall(page.read_text(encoding="utf-8")):
            target = page.parent / link if link else ROOT / path
            assert target.exists(), f"{page.name} names {link or path}"
