"""`crossdraft bench predictions`: answers drafted from predictions that are right, partly right or of something else.

The predictions are the target's own answers with none, few and many of their words changed, and another prompt's
answer. With `--ocr`, the target is held to the words of rendered pages, and hints are what an OCR engine reads of them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np

from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.ocr import Ocr
from crossdraft.structure.structure import Structure
from crossdraft_lab.bench.assembly import EngineMethod, Models
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.measure import BenchMethod, Results, Run, measure
from crossdraft_lab.bench.scale import parsed, parser_of, publish, run_program
from crossdraft_lab.bench.scale_measure import Json
from crossdraft_lab.bench.specs import check_methods
from crossdraft_lab.bench.statistics import acceptance_length, ratio
from crossdraft_lab.bench.variants import Variant, make_engine
from crossdraft_lab.bench.workload import Item, Workload, describe, items, read_prompts

SHARES = (0.0, 0.05, 0.2)  # of the words that are changed
ANOTHER = "another's answer"
LATE, EARLY = "words as the engine reads them", "words that are there at once"
PAGES = """\
Notice to all passengers. The train to the north coast leaves from platform nine at noon. Tickets are sold in the hall \
until ten minutes before departure. Bicycles travel in the last carriage, and dogs on a lead.
Opening hours. The library is open from Monday to Thursday between nine and six, on Fridays until four. It is closed \
on public holidays and in the second week of August. Books may be returned at the side entrance at any time.
How to store this product. Keep the bottle upright in a dry and dark place below twenty degrees. Once it is open, use \
it within six weeks. Keep it away from children. Do not throw it into a fire, even when it is empty.
""".splitlines()
READ = "Write down the text in the picture."


class Changed:
    """A method whose requests are changed before they are answered."""

    def __init__(self, method: EngineMethod, change: Callable[[Item], Request]) -> None:
        self.method, self.change, self.cores, self.close = method, change, method.cores, method.close

    @property
    def workers(self) -> Sequence[int]:
        """See `BenchMethod`."""
        return self.method.workers

    def answer(self, item: Item) -> Run:
        """See `BenchMethod`."""
        return self.method.answer(replace(item, request=self.change(item)))


def with_changed_words(text: str, share: float, seed: int) -> str:
    """A text with a share of its words, drawn by the seed, each replaced by another word of the text.

    >>> with_changed_words("one two  three", 0.0, 7), with_changed_words("one two", 0.5, 7)
    ('one two  three', 'two two')
    """
    parts, draws = re.split(r"(\s+)", text), np.random.default_rng(seed)
    words = [index for index in range(0, len(parts), 2) if parts[index]]
    pool = sorted({parts[index] for index in words})
    for index in draws.permutation(words)[: round(share * len(words))].tolist():
        others = [word for word in pool if word != parts[index]] or pool
        parts[index] = others[draws.integers(len(others))]
    return "".join(parts)


def page_of(text: str) -> np.ndarray:
    """Render a text as a page, uint8 [H, W, 3]."""
    from PIL import Image, ImageDraw, ImageFont

    font, lines, page = ImageFont.load_default(28), [""], Image.new("RGB", (1000, 420), "white")
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        lines = [*lines[:-1], longer] if font.getlength(longer) < 920 else [*lines, word]
    ImageDraw.Draw(page).multiline_text((40, 40), "\n".join(lines), fill="black", font=font, spacing=14)
    return np.asarray(page)


def compare(models: Models, asked: Sequence[Item], drafter: str, ocr: str | None, repeats: int) -> Json:
    """Answer all items in turn by the target alone, by a drafter, and from predictions, or from hints by OCR.

    Args:
        models: the target, its device and dtype.
        asked: the items; with `ocr` about images.
        drafter: spec of the drafter that predictions are joined with; `none` = they are alone.
        ocr: the OCR engine; `None` = predictions.
        repeats: runs of each item.
    """
    target, name = models.load_target(), "target" if drafter == "none" else drafter

    def method(drafts: str) -> EngineMethod:
        return make_engine(Variant(drafts), target, models, None)

    alone = method("target")
    methods: dict[str, BenchMethod] = {"target": alone}
    if drafter != "none":
        methods[drafter] = method(drafter)
    if ocr is None:
        texts = {item.seed: alone.ask(item.request, lambda piece: None).text for item in asked}
        for share in SHARES:
            changed = {seed: with_changed_words(text, share, seed) for seed, text in texts.items()}
            methods[f"{share:.0%} of the words changed"] = Changed(method(name), _predicting(changed))
        others = dict(zip(texts, [*texts.values()][1:] + [*texts.values()][:1], strict=True))
        methods[ANOTHER] = Changed(method(name), _predicting(others))
    else:
        engine = Ocr(ocr)
        read = {item.seed: engine.added(item.request) for item in asked}
        words = {
            seed: [one.result() for one in request.hints if isinstance(one, Future)] for seed, request in read.items()
        }
        methods[LATE] = Changed(method(name), lambda item: engine.added(item.request))
        methods[EARLY] = Changed(method(name), lambda item: replace(item.request, hints=words[item.seed]))
    try:
        results = measure(methods, asked, repeats, asked[:1])
    finally:
        for one in methods.values():
            one.close()
    kinds = [*dict.fromkeys(item.kind for item in asked)]
    rows = [_row(results, asked, one, kind) for one in methods for kind in [*kinds, "all"]]
    return {"environment": environment(), "drafter": drafter, "ocr": ocr, "repeats": repeats, "rows": rows}


def _predicting(texts: Mapping[int, str]) -> Callable[[Item], Request]:
    return lambda item: replace(item.request, predictions=[texts[item.seed]])


def _row(results: Results, asked: Sequence[Item], name: str, kind: str) -> Json:
    chosen = [index for index, item in enumerate(asked) if kind in (item.kind, "all")]
    theirs, ours = results.seconds("target"), results.seconds(name)
    tokens, rounds = results.tokens(name), results.rounds(name)
    truth, runs = results.runs["target"], results.runs[name]
    equal = sum(run.tokens == truth[index][0].tokens for index in chosen for run in runs[index])
    return {
        "method": name,
        "kind": kind,
        "speedup": ratio([theirs[index] for index in chosen], [ours[index] for index in chosen]).to_json(),
        "tau": acceptance_length([(tokens[index], rounds[index]) for index in chosen]).to_json(),
        "identical": equal,
        "runs": sum(len(runs[index]) for index in chosen),
    }


def lines(found: Json) -> list[str]:
    """The rows, in words."""
    return [
        f"{row['method']}, {row['kind']}: {row['speedup']['value']:.2f} {row['speedup']['ci95']} of the target alone, "
        f"τ {row['tau']['value']:.1f}, identical {row['identical']} of {row['runs']}"
        for row in found["rows"]
    ]


def main(argv: Sequence[str], prog: str = "crossdraft_lab.bench.predictions") -> None:
    """Run a command line.

    Raises:
        CrossdraftError: bad input.
    """
    parser = parser_of(prog, "Answers drafted from predictions, or from what OCR reads of rendered pages.")
    parser.add_argument("--target", required=True, help="folder of a checkpoint; with --ocr one that sees images")
    parser.add_argument("--prompts", type=Path, help='JSON lines {"prompt": …, "kind": …}, asked without a clip')
    parser.add_argument("--kinds", default="", help="only these kinds of prompts, comma-separated")
    parser.add_argument("--pairs", type=int, help="number of prompts; all by default")
    parser.add_argument("--drafter", default="ngram", help="what predictions are joined with; none")
    parser.add_argument(
        "--ocr", metavar="ENGINE", help="pages in place of prompts, with what this engine reads as hint"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each prompt")
    parser.add_argument("--max-new-tokens", type=int, default=96, help="longest answer")
    given, device, dtype = parsed(parser, argv)
    if (given.prompts is None) == (given.ocr is None):
        raise CrossdraftError("Name --prompts, or an engine with --ocr; one of them.")
    check_methods(("target",), () if given.drafter == "none" else (given.drafter,))
    kinds = tuple(filter(None, given.kinds.split(",")))
    if given.ocr is None:
        if given.target == "reference":
            raise CrossdraftError("The reference target knows its clips alone; for prompts name another by --target.")
        pairs = len(read_prompts(given.prompts, kinds)) if given.pairs is None else given.pairs
        work = Workload(pairs, kinds=kinds, max_new_tokens=given.max_new_tokens, prompts=given.prompts)
        asked, workload = [*items(work)], describe(work)
    else:
        asked = [
            Item(
                number,
                "page",
                Request(READ, image=page_of(text), structure=Structure.choice([text]), max_new_tokens=96),
            )
            for number, text in enumerate(PAGES)
        ]
        workload = {"pages": len(PAGES)}
    models = Models(given.target, device=str(device), dtype=dtype)
    result = compare(models, asked, given.drafter, given.ocr, given.repeats)
    publish(given, {**result, "target": Path(given.target).name, "dtype": dtype, "workload": workload}, lines(result))


if __name__ == "__main__":
    run_program(main)
