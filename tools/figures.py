"""Compares the figures in README, docs and model cards with the JSON they come from: `python -m tools.figures`.

`docs/figures.py` writes each sentence, and each row of a table, from what a command wrote (`--json-out`,
`summary.json`, `provenance.json`); a page must hold it word for word. Figures that no JSON is kept of are counted,
page by page, and the counts of `docs/untied.py` may only fall. `--write` puts the JSON's numbers into a page that has
the same words with others.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/*.md", "docs/results/*.md", "src/crossdraft/reference/**/README.md")
ANY = "⋯"  # in what is said: anything, of the same line, that is not tied

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
            `ANY` stands for what is not tied.
    """

    page: str
    sources: tuple[str, ...]
    said: Callable[..., Iterator[str]]


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


def check(texts: Mapping[str, str], said: Mapping[str, Sequence[str]], untied: Mapping[str, int]) -> list[str]:
    """A sentence for each thing that is wrong.

    Args:
        texts: of the pages.
        said: what each must hold.
        untied: how many figures of a page no JSON is kept of; of pages that are not named none.
    """
    absent = sorted((said.keys() | untied.keys()) - texts.keys())
    found = [f"{page} is named in docs/figures.py or docs/untied.py, and there is no such page." for page in absent]
    for page, text in texts.items():
        wrong, left = compare(page, text, said.get(page, ()))
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


def read(source: str) -> Any:
    """A JSON file's content."""
    path = ROOT / source
    if not path.is_file():
        sys.exit(f"{source} is named in docs/figures.py, and there is no such file.")
    return json.loads(path.read_text(encoding="utf-8"))


def main(arguments: Sequence[str]) -> int:
    """Compare, and say what differs; exit status 1 if anything does. `--write` puts the JSON's numbers in first."""
    from docs.figures import TIES
    from docs.untied import UNTIED

    said: dict[str, list[str]] = {}
    for tie in TIES:
        said.setdefault(tie.page, []).extend(tie.said(*map(read, tie.sources)))
    if "--write" in arguments:
        for page, sentences in said.items():
            path = ROOT / page
            before = path.read_text(encoding="utf-8")
            if (now := corrected(before, sentences)) != before:
                path.write_text(now, encoding="utf-8")
    wrong = check(pages(), said, UNTIED)
    for sentence in wrong:
        print(sentence)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
