"""The same answers captured and plainly generated, wave by wave in turns: what capturing costs, or saves."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from crossdraft.engine.decode import Decoder
from crossdraft.train.capture.record import ClipRecord
from crossdraft.train.capture.scribe import Scribe
from crossdraft.train.capture.sources import Clip


class Alone:
    """A scribe with a watch; `seconds` it has written for."""

    def __init__(self, scribe: Scribe) -> None:
        self.scribe = scribe
        self.seconds = 0.0

    def write(self, clips: Sequence[Clip]) -> list[list[ClipRecord]]:
        """The records of a wave."""
        start = time.perf_counter()
        records = self.scribe.write(clips)
        self.seconds += time.perf_counter() - start
        return records


class Interleaved(Alone):
    """A scribe, and the target alone with as many rows at a time, who has the first turn in every other wave.

    Both get the same requests, and prepare them themselves.
    """

    def __init__(self, scribe: Scribe, batch: int) -> None:
        super().__init__(scribe)
        self.decoder = Decoder(scribe.target, max_batch=batch)
        self.generated_s = 0.0
        self.answers = 0
        self.identical = 0
        self._waves = 0

    def warm_up(self, clip: Clip) -> None:
        """Both once, before anything counts, with a scribe that remembers nothing of it."""
        Scribe(self.scribe.target, self.scribe.wanted).write([clip])
        self.decoder.generate(clip.requests(self.scribe.wanted.max_new_tokens))

    def write(self, clips: Sequence[Clip]) -> list[list[ClipRecord]]:
        self._waves += 1
        if self._waves % 2:
            records = super().write(clips)
            answers = self._generate(clips)
        else:
            answers = self._generate(clips)
            records = super().write(clips)
        told = [told for some in records for record in some for told in record.told]
        captured = [tuple(one.tokens[one.start :].tolist()) for one in told]
        self.answers += len(answers)
        self.identical += sum(mine == own for mine, own in zip(captured, answers, strict=True))
        return records

    def _generate(self, clips: Sequence[Clip]) -> list[tuple[int, ...]]:
        longest = self.scribe.wanted.max_new_tokens
        start = time.perf_counter()
        answers = self.decoder.generate([request for clip in clips for request in clip.requests(longest)])
        self.generated_s += time.perf_counter() - start
        return [answer.tokens for answer in answers]


@dataclass(frozen=True)
class Comparison:
    """What came of it.

    Args:
        captured_s, generated_s: seconds for all answers; those of the capture include writing its files.
        ratio: captured answers a second over generated ones.
        identical, answers: how many have the same tokens, of how many. In float32 a near-tie may flip between passes of
            different shapes.
    """

    captured_s: float
    generated_s: float
    ratio: float
    identical: int
    answers: int

    @classmethod
    def of(cls, turns: Interleaved, filing_s: float) -> "Comparison":
        captured = turns.seconds + filing_s
        return cls(
            round(captured, 3),
            round(turns.generated_s, 3),
            round(turns.generated_s / captured, 3) if captured else 0.0,
            turns.identical,
            turns.answers,
        )

    def sentence(self) -> str:
        """For people."""
        return (
            f"Captured {self.ratio:.2f}x as fast as the target alone generates ({self.captured_s:.1f} s for "
            f"{self.answers} answers, {self.generated_s:.1f} s alone); {self.identical} of them are identical."
        )
