"""The site's pages: `python tools/pages.py BUILD` collects them into BUILD/pages and checks BUILD/site if it is there.

Pages keep the repository's folders, so that a link that works in a checkout works on the site. `make docs` has mkdocs
build them (`docs/mkdocs.yml`); it needs neither PyTorch nor the models.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import crossdraft

ROOT = Path(__file__).parents[1]
TAKEN = (
    "*.md", "docs/*.md", "docs/*.png", "docs/*.svg", "docs/*.json", "docs/*.css",
    "docs/results/*.*", "docs/results/*/*.json", "docs/results/*/*.svg",
    "examples/*.py", "deploy/*", "src/crossdraft/reference/**/README.md",
    "lab/src/crossdraft_lab/reference/**/README.md",
    "src/crossdraft/engine/reference.py",
)  # fmt: skip
API, WALK = "docs/api.md", "docs/walkthrough.md"  # written here

# GitHub's Markdown lets a list, a table or text follow a line at once; Python's asks for a line between.
COMMENT = re.compile(r"^(<!--(?:t| table:) [^>]*-->)\n", re.MULTILINE)
LIST = re.compile(r"^(?!\s*(?:[-*|>#]|\d+\.)\s?)(\S.*)\n(?=(?:[-*]|1\.) )", re.MULTILINE)
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|embed)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*>|<link\b[^>]*>|"""
    r"""url\(\s*["']?(?:https?:)?//[^)]*\)|@import[^;]*//[^;]*;"""
)
LINKED = re.compile(r"""\bhref=["']?(?:https?:)?//""")


def collect(into: Path) -> list[Path]:
    """Copy every page and what it shows; returns the pages, relative to `into`."""
    shutil.rmtree(into, ignore_errors=True)
    found = []
    for path in sorted({path for pattern in TAKEN for path in ROOT.glob(pattern)}):
        target = into / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
            found.append(target.relative_to(into))
        else:
            shutil.copyfile(path, target)
    (into / API).write_text(api(), encoding="utf-8")
    (into / WALK).write_text(cells((ROOT / "examples/walkthrough.py").read_text(encoding="utf-8")), encoding="utf-8")
    return [*found, Path(API), Path(WALK)]


def page(text: str) -> str:
    """A page's Markdown as Python's Markdown reads it."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if part.startswith("```") else LIST.sub(r"\1\n\n", COMMENT.sub(r"\1\n\n", part)) for part in parts
    )


def cells(script: str) -> str:
    """A script of `# %%` cells as Markdown: prose as such, code in blocks, the docstring in front."""
    docstring, *parts = re.split(r"^# %%", script, flags=re.MULTILINE)
    lines = textwrap.dedent(docstring.strip().strip('"')).strip()
    found = [f"# Walk-through\n\n{lines}\n"]
    for part in parts:
        kind, _, text = part.partition("\n")
        prose = re.sub(r"^# ?", "", text, flags=re.MULTILINE).replace("\n", "\n\n", 1)
        found.append(f"{prose.strip()}\n" if "markdown" in kind else f"```python\n{text.strip()}\n```\n")
    return "\n".join(found)


def api() -> str:
    """The reference of the public surface: for each public name, what mkdocstrings reads in the source."""
    names = [name for name in crossdraft.__all__ if not name.startswith("_")]
    head = "# API reference\n\nWhat `import crossdraft as cd` offers, from the source.\n\n"
    return head + "\n".join(f"::: crossdraft.{name}\n" for name in names)


def loads_from_elsewhere(site: Path) -> Iterator[str]:
    """A line for each script, picture, font or style that a built page would load from another host."""
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        for found in LOADED.finditer(path.read_text(encoding="utf-8")):
            shown = found[0]
            if not shown.startswith("<link") or (LINKED.search(shown) and 'rel="canonical"' not in shown):
                yield f"{path}: {shown[:200]}"


def main(build: Path) -> int:
    """Collect the pages; or, of a site that is built, say what it loads from elsewhere."""
    if not (build / "site").is_dir():
        collect(build / "pages")
        return 0
    found = list(loads_from_elsewhere(build / "site"))
    sys.stderr.writelines(f"{line}\n" for line in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
