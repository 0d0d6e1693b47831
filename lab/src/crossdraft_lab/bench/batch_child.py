"""The child's side of `child_batches`: reads questions, and writes answers, as lines of JSON on its standard streams.

It imports nothing of ours that an environment with other packages might lack.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from crossdraft.errors import CrossdraftError


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it is sent.

    Args:
        prompt: the question.
        video: path of its clip; "" = it comes without one.
        max_new_tokens: largest number of new tokens.
        ids: token ids of the whole prompt, for requests in words.
        penalty: the checkpoint's repetition penalty, for requests in words.
    """

    prompt: str
    video: str
    max_new_tokens: int
    ids: Sequence[int] = ()
    penalty: float = 1.0


def keep_stdout() -> TextIO:
    """Reserve standard output for answers: libraries' prints go to standard error. Call it before libraries load."""
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


def serve(
    out: TextIO, about: Mapping[str, object], answer: Callable[[Sequence[Asked]], Sequence[Mapping[str, object]]]
) -> None:
    """Write `about`, then answer a batch for every line of standard input, until its end.

    Args:
        out: as `keep_stdout` returns it.
        about: plain values for the report, such as versions.
        answer: returns the batch's answers in the order of the requests, each made by `served`.
    """
    _write(out, about)
    for line in sys.stdin:
        try:
            _write(out, {"served": answer([Asked(**one) for one in json.loads(line)])})
        except CrossdraftError as error:
            _write(out, {"error": str(error)})


def served(tokens: Sequence[int], ttft_s: float, total_s: float) -> dict[str, object]:
    """Plain values of one answer, in the form that `ChildBatches` reads."""
    return {"tokens": list(tokens), "ttft_s": ttft_s, "total_s": total_s}


def _write(out: TextIO, found: Mapping[str, object]) -> None:
    out.write(json.dumps(found) + "\n")
    out.flush()
