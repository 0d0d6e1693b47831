"""What the documentation says runs: Python blocks, in order, on the tiny pair and clip; command lines parse."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import crossdraft
from crossdraft.cli.main import app
from crossdraft.methods import METHODS
from crossdraft_lab.bench.scale import read_arguments
from tools.pages import API, WALK, cells, collect, loads_from_elsewhere
from tools.pages import page as site_page
from tools.tables import MARKED, TABLES, with_tables

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#]+)\)|`((?:src|tests|docs)/[\w/.]+)`")


def pages() -> list[Path]:
    return [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *sorted(DOCS.glob("*.md"))]


def test_tables_are_those_of_the_code():
    """What `python tools/tables.py` writes."""
    pages = {page.name: page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")}
    assert {name for text in pages.values() for _, name, _ in MARKED.findall(text)} == set(TABLES)
    assert {name: with_tables(text) for name, text in pages.items()} == pages


RUN = (
    "README.md", "docs/serving_in_process.md", "docs/adding_a_drafter.md", "docs/adding_a_head.md",
    "docs/adding_a_vlm.md", "docs/huggingface.md", "docs/streams.md", "docs/scores.md",
)  # fmt: skip


@pytest.mark.parametrize("page", RUN)
def test_python_blocks_run(page, pair, clip, capsys, no_drafters_registered, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert blocks
    code = "\n".join(blocks)
    ours = {"reference": pair.target, "event": pair.event, "clip.mp4": clip.video, "clip.h5": clip.events}
    ours |= {"LanguageBind/Video-LLaVA-7B-hf": pair.target}
    ours |= {"demo/scene-2000000.mp4": clip.video, "demo/scene-2000000.h5": clip.events}
    if page == "README.md":
        del ours["reference"]  # with its default drafter, as it stands there
    for name, path in ours.items():
        code = code.replace(f'"{name}"', repr(str(path)))
    exec(compile(code, page, "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.strip()


def test_pages_name_files_that_exist():
    for page in pages():
        for link, path in LINK.findall(page.read_text(encoding="utf-8")):
            target = page.parent / link if link else ROOT / path
            assert target.exists(), f"{page.name} names {link or path}"


def commands(page: Path) -> list[str]:
    """The command lines of a page: lines of a fenced or indented block that call crossdraft, continued ones joined."""
    lines, fenced = [], False
    for line in re.sub(r" \\\n +", " ", page.read_text(encoding="utf-8")).splitlines():
        fenced = fenced != line.startswith("```")
        called = re.match(r"(?:    )?(?:\$ |torchrun .* -m )?(crossdraft .*)", line)
        if called and (fenced or line.startswith("    ")):
            lines.append(called.group(1))
    return lines


ALL = [(page.name, line) for page in pages() for line in commands(page)]


@pytest.mark.parametrize(("page", "line"), ALL, ids=[f"{page}: {line[:60]}" for page, line in ALL])
def test_command_lines_parse(page: str, line: str) -> None:
    """Every command, argument and option of a page is known, and every value of its kind."""
    arguments = shlex.split(line, comments=True)[1:]
    if arguments[:2] == ["bench", "scale"]:
        if "--help" not in arguments:
            read_arguments(["cpu" if one == "cuda" else one for one in arguments[2:]], "scale")
        return
    parse(arguments)


def parse(arguments: list[str]) -> None:
    """Walk down the commands, reading options as the command line does, without running anything."""
    command = typer.main.get_command(app)
    name = "crossdraft"
    while True:
        if "--help" in arguments[:1]:
            return
        context = command.make_context(name, list(arguments))
        if not hasattr(command, "get_command"):
            return
        arguments = [*context._protected_args, *context.args]
        if not arguments:  # a group that does something by itself
            assert command.invoke_without_command
            return
        name, command, arguments = command.resolve_command(context, arguments)


@pytest.mark.parametrize(
    "line", ["crossdraft ask --vidio x q", "crossdraft train eagel", "crossdraft plan --alpha x --bogus 3"]
)
def test_a_command_line_that_is_wrong_does_not_parse(line: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        parse(shlex.split(line)[1:])


README = ROOT / "README.md"


def test_readme_says_what_it_is_first_and_stays_short() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert "speculative decoding for video VLMs" in " ".join(lines[1:4])
    assert len(lines) < 180


def test_readme_counts_the_drafters() -> None:
    assert f"{len(METHODS)} of them" in README.read_text(encoding="utf-8")


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs").glob("*.[ps][nv]g"):
        assert picture.stat().st_size < 300_000, picture.name


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The pages as `make docs` hands them to mkdocs."""
    folder = tmp_path_factory.mktemp("site")
    assert Path(API) in collect(folder)
    return folder


def test_links_of_the_site_lead_to_its_pages_and_headings(site):
    seen = 0
    for path in site.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", FENCED.sub("", text)):
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            assert target.is_file(), f"{path.relative_to(site)} links to {link}"
            if anchor:
                assert anchor in headings(target.read_text(encoding="utf-8")), f"{path.relative_to(site)}: {link}"
            seen += 1
    assert seen > 60


FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def headings(text: str) -> set[str]:
    """What GitHub and the site call a page's headings in links."""
    found = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in found}


def test_every_page_is_in_the_site_s_navigation():
    listed = re.findall(r"([\w/]+\.md)$", (DOCS / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    there = {str(one.relative_to(ROOT)) for one in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]}
    assert sorted(listed) == sorted(there | {API, WALK})


def test_the_reference_has_every_public_name(site):
    text = (site / API).read_text(encoding="utf-8")
    assert re.findall(r"^::: crossdraft\.(\w+)$", text, re.MULTILINE) == [
        name for name in crossdraft.__all__ if name != "__version__"
    ]
    assert all(getattr(crossdraft, name).__doc__ for name in crossdraft.__all__)


def test_a_script_of_cells_is_a_page():
    script = '"""A walk.\n\n    code\n"""\n\n# %% [markdown]\n# ## One\n# Two\n# three.\n\n# %%\nx = 1\n'
    assert cells(script) == "# Walk-through\n\nA walk.\n\n    code\n\n## One\n\nTwo\nthree.\n\n```python\nx = 1\n```\n"


def test_a_list_or_table_that_follows_text_at_once_is_one_on_the_site():
    assert site_page("<!-- table: x -->\n- a\nTwo:\n- b\n") == "<!-- table: x -->\n\n- a\nTwo:\n\n- b\n"
    assert site_page("<!--t a:b |\nc d-->\n| a |\n") == "<!--t a:b |\nc d-->\n\n| a |\n"
    figure = "of <!--v a:b .1f-->1.0<!--/v-->\n<!--v a:c .1f-->2.0<!--/v-->\nin all\n"
    assert site_page(figure) == figure
    assert site_page("```\nTwo:\n- b\n```\n") == "```\nTwo:\n- b\n```\n"


@pytest.mark.parametrize(
    "line",
    [
        '<script src="https://unpkg.com/x.js"></script>', '<link rel="stylesheet" href="//fonts.example/a.css">',
        '<img alt="x" src=http://a.example/x.png>', "a { background: url('https://a.example/x.png') }",
    ],
)  # fmt: skip
def test_what_a_page_would_load_from_elsewhere_is_found(line, tmp_path):
    (tmp_path / "a.html").write_text('<a href="https://a.example">x</a><link rel="icon" href="x.png"><img src="x.png">')
    assert list(loads_from_elsewhere(tmp_path)) == []
    (tmp_path / "a.css").write_text(line)
    assert len(list(loads_from_elsewhere(tmp_path))) == 1
