"""Compares the figures in README, docs and model cards with the JSON they come from: `python -m tools.figures`.

`docs/figures.py` writes each sentence, and each row of a table, from what a command wrote (`--json-out`,
`summary.json`, `provenance.json`); a page must hold it word for word. Figures that no JSON is kept of are counted,
page by page, and the counts of `docs/untied.py` may only fall.

Where the words depend on the figures, too, a part of a page is written whole: a block, between
`<!-- figures: NAME -->` and `<!-- end -->`.

`--write` writes the blocks, puts the JSON's numbers into sentences that have the same words with others, and lowers the
counts of figures that are tied now.
"""

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/*.md", "docs/results/*.md", "src/crossdraft/reference/**/README.md",
         "lab/src/crossdraft_lab/reference/**/README.md")  # fmt: skip
UNTIED_PAGE = "docs/untied.py"
ANY = "⋯"  # in what is said: anything, of the same line, that is not tied
WIDTH = 140  # of a line of a block's prose

# What is no figure: code, comments, links' addresses, tables written from the code, versions, sections.
NO_FIGURES = re.compile(
    r"```.*?```|^    .*?$|`[^`\n]*`|<!-- table: .*?<!-- end -->|<!--.*?-->|\]\([^)]*\)|^#.*?$"
    r"|\b(?:CC BY(?:-SA)?|HTTP|InternVL|Python|PyTorch|pycocoevalcap|Ray|TLS \(|torch|transformers|vLLM|crossdraft)"
    r"[ /]?\d[\d.]*(?:,? (?:or|and|to) \d[\d.]*)*"
    r"|\b(?:arXiv )?\d{4}\.\d{5}\b|\b\d+\.\d+\.\d+(?:\.\d+)?\b|\b95 %\s(?:bootstrap|interval)",
    re.DOTALL | re.MULTILINE,
)
NUMBER = r"(?:\d[\d,]*(?:\.\d+)?)"
# A number with a point, an interval, a unit, "times", "of" so many, or alone in a cell.
FIGURE = re.compile(
    rf"(?<![\w.,\-−+])[−+-]?(?:{NUMBER} ?(?:×(?! ?\d)|%|[mµ]?s\b|[KMG]i?B\b|tokens/s|minutes?\b|hours?\b"
    rf"|times (?:as|the))"
    rf"|{NUMBER} of {NUMBER}\b|{NUMBER}/{NUMBER}|\d[\d,]*\.\d+(?!\w))"
    rf"|(?<=\| ){NUMBER}(?= \|)|\bτ {NUMBER}"
)

LITERAL = re.compile(r"\d+(?:\.\d+|,\d+)*")
ENDS = r"(?![\d.,]*\d)"  # behind a number: it does not go on
ESCAPED = re.compile(r"\d+(?:\\\.\d+|,\d+)*")  # the same in an escaped text


@dataclass(frozen=True)
class Tie:
    """What a page says of some files.

    Args:
        page: its path from the root.
        sources: paths of the JSON files.
        said: takes their contents in that order, and yields each sentence or row, numbers rounded as they stand there;
            `ANY` stands for what is not tied. Of a block it yields the paragraphs and the rows, in their order.
        block: the name of the block that it writes; without one each sentence stands anywhere in the page.
    """

    page: str
    sources: tuple[str, ...]
    said: Callable[..., Iterator[str]]
    block: str = ""


@dataclass
class Said:
    """What a page must hold: sentences anywhere, and blocks by their names."""

    sentences: list[str] = field(default_factory=list)
    blocks: dict[str, str] = field(default_factory=dict)


def interval(found: Mapping[str, Any], digits: int = 2, name: str = "value") -> str:
    """`1.90 [1.68, 2.10]`, of what `Interval.to_json` wrote."""
    low, high = found["ci95"]
    return f"{found[name]:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def minus(text: str) -> str:
    """With the sign that pages have for a hyphen: `−0.1 [−0.2, 0.1]`."""
    return text.replace("-", "−")


def pattern(said: str, *, numbers: bool = True) -> re.Pattern[str]:
    r"""What finds a sentence in a page, however its lines are broken and whatever of it is emphasised.

    Args:
        said: the sentence; without emphasis itself.
        numbers: its own ones; any others if not.

    >>> bool(pattern("τ 1.5 here").search("a τ\n**1.5** here"))
    True
    >>> pattern("τ 1.5 here", numbers=False).search("a τ 1.7\nhere")[0]
    'τ 1.7\nhere'
    >>> bool(pattern("it is 0.75").search("it is 0.758"))
    False
    """

    def piece(text: str) -> str:
        words = [re.escape(word) for word in text.replace("*", "").split()]
        ends = ENDS if words and words[-1][-1].isdigit() else ""
        if not numbers:
            words = [ESCAPED.sub(r"[\\d.,]+", word) for word in words]
        return r"\s+".join(rf"\**{word}\**" for word in words) + ends

    return re.compile(r"(?<![\w.])" + r"[^\n]*?".join(f"({piece(part)})" for part in said.split(ANY)))


def compare(page: str, text: str, said: Iterable[str]) -> tuple[list[str], str]:
    """A sentence for each thing said that a page does not hold, and the page without those that it holds."""
    # The longer one first: another may be its beginning.
    wanted = sorted(dict.fromkeys(said), key=len, reverse=True)
    found, left = list[str](), text
    for one in wanted:
        places = list(pattern(one).finditer(left))
        if not places:
            near = pattern(one, numbers=False).search(left)
            instead = f"it says '{' '.join(near[0].split())}'" if near else "nothing like it is there"
            found.append(f"{page}: the JSON gives '{' '.join(one.split())}', and {instead}.")
        for place in places:
            for start, end in place.regs[1:]:
                left = left[:start] + "¤" * (end - start) + left[end:]
    return found, left


def corrected(text: str, said: Iterable[str]) -> str:
    """A page with the numbers of what is said, where it holds the same words with others."""
    _, left = compare("", text, said)
    for one in dict.fromkeys(said):
        if pattern(one).search(text):
            continue
        near = pattern(one, numbers=False).search(left)  # what no other sentence has found
        if near is not None:
            for part, (start, end) in reversed([*zip(one.split(ANY), near.regs[1:], strict=True)]):
                right = iter(LITERAL.findall(part))
                now = LITERAL.sub(lambda _, right=right: next(right), near.string[start:end])
                text = text[:start] + now + text[end:]
                left = left[:start] + "¤" * len(now) + left[end:]
    return text


def block_text(parts: Iterable[str]) -> str:
    r"""A block of paragraphs, whose lines are broken (never behind a number), and of rows, which follow each other.

    >>> block_text(["It took 5 ms.", "| a |", "|---|", "| 5 |", "So it did."])
    'It took 5 ms.\n\n| a |\n|---|\n| 5 |\n\nSo it did.'
    """
    text, row_before = "", False
    for part in parts:
        row = part.startswith("|")
        glued = re.sub(r"(?<=\d) (?=\S)", "\0", part)
        filled = textwrap.fill(glued, WIDTH, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
        text += ("" if not text else "\n" if row and row_before else "\n\n") + (part if row else filled)
        row_before = row
    return text


def find_block(text: str, name: str) -> re.Match[str] | None:
    """A block of a page; its text is the second group."""
    return re.search(rf"(<!-- figures: {re.escape(name)} -->\n)(.*?)(<!-- end -->)", text, re.DOTALL)


def compare_blocks(page: str, text: str, blocks: Mapping[str, str]) -> tuple[list[str], str]:
    """What the blocks of a page do not hold, and the page without those that are as they should be."""
    found = list[str]()
    for name, wanted in blocks.items():
        place = find_block(text, name)
        if place is None:
            found.append(f"{page} has no block '<!-- figures: {name} -->' with '<!-- end -->' behind it; put it there.")
        elif place[2].split() == wanted.split():
            text = text[: place.start(2)] + text[place.end(2) :]
        else:
            found.append(f"{page}: its block '{name}' is not what the JSON gives; write it: tools.figures --write.")
    return found, text


def with_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """A page with its blocks as the JSON gives them."""
    for name, wanted in blocks.items():
        place = find_block(text, name)
        if place is not None and place[2].split() != wanted.split():
            text = f"{text[: place.start(2)]}{wanted}\n{text[place.end(2) :]}"
    return text


def figures(text: str) -> list[str]:
    """What looks measured in a page, numbers of code, versions and generated tables left out.

    >>> figures("With torch 2.13 it took 5.1 ms, 1.4 times as fast; `--alpha 0.8`, 3 clips, 12 of 12, τ 8.")
    ['5.1 ms', '1.4 times as', '12 of 12', 'τ 8']
    """
    return [match[0].strip() for match in FIGURE.finditer(NO_FIGURES.sub(" ", text))]


def pages() -> dict[str, str]:
    """Every page that may hold figures, by its path from the root."""
    found = sorted(path for glob in PAGES for path in ROOT.glob(glob))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in found}


def compare_page(page: str, text: str, said: Said) -> tuple[list[str], str]:
    """What a page does not hold of its blocks and sentences, and the page without those that it holds."""
    wrong, left = compare_blocks(page, text, said.blocks)
    more, left = compare(page, left, said.sentences)
    return wrong + more, left


def check(texts: Mapping[str, str], said: Mapping[str, Said], untied: Mapping[str, int]) -> list[str]:
    """A sentence for each thing that is wrong.

    Args:
        texts: of the pages.
        said: what each must hold.
        untied: how many figures of a page no JSON is kept of; of pages that are not named none.
    """
    absent = sorted((said.keys() | untied.keys()) - texts.keys())
    found = [f"{page} is named in docs/figures.py or docs/untied.py, and there is no such page." for page in absent]
    for page, text in texts.items():
        wrong, left = compare_page(page, text, said.get(page, Said()))
        loose, listed = figures(left), untied.get(page, 0)
        found += wrong
        if len(loose) > listed and not wrong:
            found.append(
                f"{page} has {len(loose)} figures that are tied to no JSON, and {listed} are listed; keep what the "
                "command writes with --json-out in docs/results, and tie them in docs/figures.py. The last ones: "
                f"{', '.join(loose[-5:])}."
            )
        elif len(loose) < listed:
            found.append(f"{page} has {len(loose)} figures left that are not tied; write that in docs/untied.py.")
    return found


def measured(*ties: Tie) -> tuple[Tie, ...]:
    """Those whose files are there: a page is tied as soon as its bench has run."""
    return tuple(tie for tie in ties if all((ROOT / source).is_file() for source in tie.sources))


def read(source: str) -> Any:
    """A JSON file's content."""
    path = ROOT / source
    if not path.is_file():
        sys.exit(f"{source} is named in docs/figures.py, and there is no such file.")
    return json.loads(path.read_text(encoding="utf-8"))


def all_said(ties: Iterable[Tie]) -> dict[str, Said]:
    """What the ties say, page by page."""
    found: dict[str, Said] = {}
    for tie in ties:
        page, parts = found.setdefault(tie.page, Said()), tie.said(*map(read, tie.sources))
        if tie.block:
            page.blocks[tie.block] = block_text(parts)
        else:
            page.sentences.extend(parts)
    return found


def lowered(listing: str, counts: Mapping[str, int]) -> str:
    """`docs/untied.py` with the counts of pages that have fewer figures left; pages with none are no longer in it."""

    def line(found: re.Match[str]) -> str:
        listed = int(found[3])
        count = min(listed, counts.get(found[2], listed))
        return f"{found[1]}{count}{found[4]}" if count else ""

    return re.sub(r'^(    "([^"]+)": )(\d+)(,.*\n)', line, listing, flags=re.MULTILINE)


def write(said: Mapping[str, Said]) -> None:
    """Bring pages, and the list of figures that are not tied, up to date."""
    for page, one in said.items():
        path = ROOT / page
        before = path.read_text(encoding="utf-8")
        if (now := corrected(with_blocks(before, one.blocks), one.sentences)) != before:
            path.write_text(now, encoding="utf-8")
    left = {page: compare_page(page, text, said.get(page, Said())) for page, text in pages().items()}
    path = ROOT / UNTIED_PAGE
    counts = {page: len(figures(text)) for page, (wrong, text) in left.items() if not wrong}
    path.write_text(lowered(path.read_text(encoding="utf-8"), counts), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Compare, and say what differs; exit status 1 if anything does. `--write` writes what the JSON gives first."""
    from docs.figures import TIES

    said = all_said(TIES)
    if "--write" in arguments:
        write(said)
    from docs.untied import UNTIED

    wrong = check(pages(), said, UNTIED)
    for sentence in wrong:
        print(sentence)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
