"""One request while it is answered: what was emitted, what it cost, when it ends."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from crossdraft.engine.accept import Rule
from crossdraft.engine.detokenize import AnswerText, TokenText
from crossdraft.engine.drafter import PromptFeatures
from crossdraft.engine.estimates import RequestDifficulty
from crossdraft.engine.processors import TreeProcessors
from crossdraft.engine.request import Answer, Finish, Origin, Piece, Request
from crossdraft.engine.runner.runner import Placement
from crossdraft.engine.sampling import warp_tree
from crossdraft.engine.stats import Stats
from crossdraft.engine.target import Prompt, Target
from crossdraft.engine.timeline import Timeline, covered
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

OnPiece = Callable[[Piece], None]
READING = ("prepare", "encode", "prefill")  # the target's lane before the ride-along pass


@dataclass(frozen=True)
class Job:
    """A request with its ticket, and who is told its pieces: provisional ones too, if asked for."""

    request_id: int
    request: Request
    on_piece: OnPiece | None = None
    provisional: bool = True


class RequestState:
    """The mutable side of a request. `drafter` is who drafts for it, until that is lost or gives up.

    `fresh`: draw by chance that nobody knows, whatever the request's seed; see `Needs.remembers`.
    """

    def __init__(self, job: Job, rule: Rule, drafter: Placement | None = None, *, fresh: bool = False) -> None:
        self.job = job
        self.request_id = job.request_id
        self.request = job.request
        self.rule = rule
        self.drafter = drafter
        self.error: Exception | None = None
        self.started = time.perf_counter()
        self.stats = Stats(rule=rule.spec, lossless=rule.lossless)
        self.timeline = Timeline()
        self.generator = job.request.sampling.generator()
        if fresh:
            self.generator.seed()
        if not job.request.sampling.greedy:
            self.stats.seed = self.generator.initial_seed()
        self.context: list[int] = []  # prompt and answer: what repetition penalties look at
        self.tokens: list[int] = []
        self.pieces: list[Piece] = []
        self.logprobs: list[float] = []
        self.text = AnswerText(TokenText(lambda tokens: ""))  # of the answer, once the prompt is known
        self.processors: TreeProcessors | None = None  # where the fast warpers do not suffice
        self.finish: Finish | None = None
        self.notes: list[str] = []
        self.frailty = RequestDifficulty()  # how its drafts have fared
        self.path_probs: tuple[float, ...] = ()  # the drafter's chances of the nodes that are being judged
        self.prompt: PromptFeatures | None = None  # for its drafter, until it has been told
        self.waits: list[tuple[float, float]] = []  # when the target waited for the drafter: start and end of each
        self.read_wait = 0.0  # seconds that the target waited while its drafter read it
        self.read_until = math.inf  # when the target's reading ended
        self.first_round = math.inf  # when the first round after it began

    @property
    def root(self) -> int:
        """The last committed token; it is not in the cache yet."""
        return self.tokens[-1]

    @property
    def over(self) -> bool:
        """True if nothing more will be emitted."""
        return self.finish is not None or self.error is not None

    def fail(self, error: Exception) -> None:
        """End the request with an error: it has no answer."""
        self.error = self.error or error

    def end_drafting(self, why: str, *, lost: bool = False) -> None:
        """Nobody drafts for this request any more."""
        if self.drafter is None:
            return
        self.drafter = None
        what = "was lost" if lost else "gave up"
        self.notes.append(f"The drafter {what} ({why.rstrip('.')}); the target went on alone.")

    def drop_draft(self, why: str) -> None:
        """A draft could not be read: it is not verified, and the answer says so once."""
        self.stats.bad_drafts += 1
        if self.stats.bad_drafts == 1:
            self.notes.append(f"A draft was dropped: {why}.")

    def tell(self, piece: Piece) -> None:
        """Pass a piece on; who cannot take it is told nothing more, and the request ends."""
        if self.job.on_piece is None or self.error is not None:
            return
        try:
            self.job.on_piece(piece)
        except (Exception, SystemExit) as error:
            log.exception("Whoever watches a request failed.")
            self.fail(error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}"))

    def begin(self, prompt: Prompt, target: Target) -> None:
        """Note the prompt and check that the answer fits behind it.

        Raises:
            CrossdraftError: prompt and answer exceed the model's context.
        """
        length = len(prompt)
        if length >= target.context:
            raise CrossdraftError(
                f"The prompt has {length} tokens, the model's context {target.context}; ask a shorter question."
            )
        wanted = self.request.max_new_tokens
        if wanted is None:
            wanted = target.defaults.limit(length, target.context)
            self.request = replace(self.request, max_new_tokens=wanted)
        if length + wanted > target.context:
            raise CrossdraftError(
                f"max_new_tokens is {wanted}, but behind the prompt of {length} tokens the model's context has "
                f"room for {target.context - length}; ask for at most that many."
            )
        self.context = prompt.input_ids.tolist()
        self.stats.prompt_tokens = length
        self.text = AnswerText(target.text, self.request.stops, self.context)
        if self.request.sampling.contextual:
            self.processors = TreeProcessors(
                self.request.sampling, target.model, self.context, target.defaults.eos, wanted
            )

    def warp(self, logits: Tensor, tree: DraftTree) -> Tensor:
        """The distribution behind the root and every node, [1 + n, V], of raw logits of that shape."""
        if self.processors is not None:
            return self.processors.warp_tree(logits, tree, self.context)
        return warp_tree(logits, tree, self.context, self.request.sampling)

    def emit(
        self,
        tokens: Sequence[int],
        logits: Tensor,
        nodes: Sequence[int],
        origin: Origin,
        target: Target,
        tell: Callable[[Piece], None],
    ) -> None:
        """Append accepted tokens (of `origin`) and the target's own last one, as far as the answer goes.

        `nodes[i]` is the tree node (-1 = root) whose logits row chose `tokens[i]`.
        """
        if not self.tokens:
            self.stats.ttft_s = time.perf_counter() - self.started
        taken, texts = self._until_end(tokens, target)
        accepted = taken[:-1] if len(taken) == len(tokens) else taken
        if self.request.logprobs:
            rows = torch.tensor([node + 1 for node in nodes[: len(taken)]], device=logits.device)
            logprobs = logits[rows].float().log_softmax(-1)
            self.logprobs += [logprobs[i, token].item() for i, token in enumerate(taken)]
        self.tokens += taken
        self.context += taken
        cut = len(accepted)
        for part, said, source in ((accepted, texts[:cut], origin), (taken[cut:], texts[cut:], Origin.TARGET)):
            if part:
                text = "".join(said) if self.request.stops else self.text.push(part)
                self._tell(part, text, source, tell)
        self.end(tell)

    def _until_end(self, tokens: Sequence[int], target: Target) -> tuple[list[int], list[str]]:
        """The leading tokens that belong to the answer, and with stop strings each one's text.

        Sets `finish` where the answer ends.
        """
        taken: list[int] = []
        texts: list[str] = []
        for token in tokens:
            taken.append(token)
            if self.request.stops:
                texts.append(self.text.push((token,)))
            if token in target.eos:
                self.finish = Finish.EOS
            elif self.text.stopped:
                self.finish = Finish.STOP
            elif len(self.tokens) + len(taken) == self.request.token_limit:
                self.finish = Finish.LENGTH
            if self.finish is not None:
                return taken, texts
        limit = self.request.max_time
        if limit is not None and time.perf_counter() - self.started > limit:
            self.finish = Finish.TIME
        return taken, texts

    def _tell(self, tokens: Sequence[int], text: str, origin: Origin, tell: Callable[[Piece], None]) -> None:
        self.pieces.append(Piece(tuple(tokens), text, origin, self.request_id))
        tell(self.pieces[-1])

    def end(self, tell: Callable[[Piece], None]) -> None:
        """If the answer has ended, hand out the text that was held back: what was streamed is what was answered."""
        if self.finish is not None and (text := self.text.flush()):
            self._tell((), text, self.pieces[-1].origin if self.pieces else Origin.TARGET, tell)

    def count_reading(self, until: float) -> None:
        """The target's reading is over at `until`: how much of the drafting was hidden in it?"""
        self.read_until = until
        for stage in READING:
            self.stats.add_time(stage, self.timeline.total("target", stage))
        self._count_hidden()

    def _count_hidden(self) -> None:
        """Add up the hidden drafting known so far; the spans of a late draft come only with a later reply."""
        drafter = [span for span in self.timeline.spans if span.lane == "drafter"]
        late = {"read", "hidden draft"} if any(span.name == "hidden draft" for span in drafter) else set[str]()
        hidden = [span for span in drafter if span.start < self.read_until or span.name in late]
        # What ran before the target began to read (inline, one after the other) was not hidden.
        reading = [span for span in self.timeline.spans if span.lane == "target" and span.name in READING]
        self.stats.hidden_drafting_s = sum(span.seconds for span in hidden)
        self.stats.hidden_inside_s = sum(part.overlap(span.start, span.end) for part in hidden for span in reading)
        first = next((span.end - self.started for span in hidden if span.name == "read"), None)
        if first is not None and self.tokens and first >= self.stats.ttft_s:
            first = None  # what comes behind the first final token is not provisional
        self.stats.first_provisional_s = first

    def _count_waits(self) -> None:
        """Part what the target waited into the drafter's computing, and sending, packing and idling.

        In the rounds they are the stages `draft` and `communication`, before these with `hidden` in front.
        """
        drafter = [span for span in self.timeline.spans if span.lane == "drafter"]
        for start, end in self.waits:
            computing, when = covered(drafter, start, end), "" if start >= self.first_round else "hidden "
            self.stats.add_time(f"{when}draft", computing)
            self.stats.add_time(f"{when}communication", end - start - computing)

    def close(self) -> None:
        """The request leaves the batch."""
        self.stats.total_s = time.perf_counter() - self.started
        self._count_hidden()
        self._count_waits()

    def answer(self) -> Answer:
        """What the user gets."""
        return Answer(
            text="".join(piece.text for piece in self.pieces),
            tokens=tuple(self.tokens),
            pieces=tuple(self.pieces),
            finish=self.finish or Finish.CANCELLED,
            stats=self.stats,
            timeline=self.timeline,
            logprobs=tuple(self.logprobs) if self.request.logprobs else None,
            notes=tuple(self.notes),
        )
