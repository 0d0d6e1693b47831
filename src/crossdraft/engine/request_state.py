"""RequestState: one request while it is answered: its prompt, its tokens so far, and its end."""

import logging
import math
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Rule, follow
from crossdraft.engine.arrivals import VisualFuture
from crossdraft.engine.cache import KVCache, KVPrefix
from crossdraft.engine.cost_model import DraftDepth
from crossdraft.engine.detokenize import AnswerText, TokenText
from crossdraft.engine.devices import to_device
from crossdraft.engine.drafter import Draft, Needs, OnToken, VerifyOutput
from crossdraft.engine.estimates import RequestDifficulty
from crossdraft.engine.ledger import Ledger
from crossdraft.engine.noise import Noise
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.predictions import TextDrafts
from crossdraft.engine.prefix_cache import CachedPrompt
from crossdraft.engine.processors import TreeProcessors, impossible, verify_tree
from crossdraft.engine.prompt import PromptIds, text_ids
from crossdraft.engine.prompt_features import PromptReading, SharedPrompt
from crossdraft.engine.request import Answer, Finish, Origin, Piece, Request, TopTokens
from crossdraft.engine.sampling import SEEDS, warp_tree
from crossdraft.engine.stats import Stats
from crossdraft.engine.structure import Masks, masked
from crossdraft.engine.successors import successors_of
from crossdraft.engine.target import Target
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import ContextLengthError, CrossdraftError

log = logging.getLogger(__name__)

OnPiece = Callable[[Piece], None]
FORCED = 0.95  # probability of what a structure forces: the model may write it in other tokens
REPEATED = 0.98  # probability of a token of an earlier answer to the same prompt
LEAST_ROUNDS = 8  # a shorter answer does not note why hardly anything was drafted
LATE = "No draft came before the answer was complete; nothing was drafted."


@dataclass(frozen=True)
class Job:
    """A queued request: its id, the callback for its pieces (`provisional` ones too, if wanted), and when it came."""

    request_id: int
    request: Request
    on_piece: OnPiece | None = None
    provisional: bool = True
    asked: float = field(default_factory=time.perf_counter)
    cancelled: Callable[[], bool] = bool  # whether it was cancelled; asked between chunks of its prompt


class RequestState:
    """The mutable side of a request.

    Args:
        job: what was asked.
        rule: verifies its drafts.
        learns: true if the drafter learns from answers. A rule whose answers depend on what is drafted then takes a
            random seed instead of the request's; see `Needs.learns`.
    """

    def __init__(self, job: Job, rule: Rule, *, learns: bool = False) -> None:
        self.job = job
        self.request_id = job.request_id
        self.request = job.request
        self.rule = rule
        self.drafter_decided = False  # whether it was decided if the drafter drafts for it
        self.drafting = False  # whether the drafter drafts for it; false once the drafter is lost or gives up
        self.drafter_error: str | None = None  # why the drafter was lost or gave up
        self.error: Exception | None = None
        self.ledger = Ledger(Stats(rule=rule.spec, lossless=rule.lossless, lossy_rule=not rule.lossless))
        self.stats.queued_s = self.ledger.started - job.asked
        self.seed = 0  # a greedy answer has none
        if not job.request.sampling.greedy:
            unknown = learns and not rule.invariant
            self.seed = self.stats.seed = secrets.randbelow(SEEDS) if unknown else job.request.sampling.seed or 0
        self.context, self.tokens = list[int](), list[int]()  # prompt and answer, and the answer
        self.pieces: list[Piece] = []
        self.logprobs, self.top_logprobs = list[float](), list[TopTokens]()
        self.text = AnswerText(TokenText(lambda tokens: ""))  # the answer's text, set once the prompt is known
        self.reader: Any = None  # takes calls of its tools out of its text
        self.ends = frozenset(self.request.stop_token_ids)  # ids that end it, with the checkpoint's once it is known
        self.processors: TreeProcessors | None = None  # where the fast warpers do not suffice
        self.masks: Masks | None = None  # of the request's structure
        self.texts: TextDrafts | None = None  # drafts from its predictions and hints
        self.repeats = False  # whether an earlier answer to the same prompt is a draft, and its tokens
        self.before: tuple[int, ...] = ()
        self.added = 0  # last nodes of its draft that no drafter proposed
        self.finish: Finish | None = None
        self.notes: list[str] = []
        self.difficulty = RequestDifficulty()  # of its drafts, relative to the rates of all requests
        self.stated = RequestDifficulty()  # of its drafts, relative to the drafter's own probabilities
        self.plain_plan: DraftDepth | None = None  # plan of the last round in which drafting did not pay
        self.cache_row = -1  # its row of the cache, while it has one
        self.known: CachedPrompt | None = None  # its prompt, once it is prepared
        self.pending: list[Chunk] = []  # chunks of its prompt still to be read; empty = its root is read next
        self.prefix = KVPrefix()  # cached beginning of its prompt, until it has a row
        self.shared: SharedPrompt | None = None  # of the requests that share its prompt
        self.rope_delta = 0
        self.features: PromptReading | None = None  # hidden layers of its prompt for its drafter, until a commit
        self.visual_features: VisualFuture | None = None  # for its drafter
        self.prompt_ids = PromptIds()  # for its drafter, set once the prompt is prepared

    @property
    def stats(self) -> Stats:
        """Counts and times so far."""
        return self.ledger.stats

    @property
    def root(self) -> int:
        """The last committed token; it is not in the cache yet."""
        return self.tokens[-1]

    def why_undrafted(self) -> str | None:
        """Why hardly anything was drafted for it, with the numbers; `None` if something was, or it is short."""
        stats, plan, rounds = self.stats, self.plain_plan, self.stats.rounds
        off = 2 * stats.rounds_off > rounds >= LEAST_ROUNDS
        if off and plan is not None and (best := plan.nearest) is not None:
            return (
                f"Drafting did not pay in {stats.rounds_off} of {rounds} rounds: in the last of them a draft of "
                f"{best.depth} and its pass would have taken {best.seconds / plan.token_s:.1f} times as long as a pass "
                f"without, for {best.tokens:.1f} tokens."
            )
        uncounted = 2 if stats.rounds_off else 1  # nothing is asked for in the first round, and maybe in the last
        if stats.drafted or stats.rounds_off + uncounted >= rounds:
            return None
        if not self.ledger.drafted:
            return LATE
        return f"The drafter proposed nothing in {rounds} rounds." if rounds >= LEAST_ROUNDS else None

    def captured(self, chunk: Chunk, needs: Needs) -> tuple[int, ...]:
        """The hidden layers that its drafter wants of its next tokens."""
        if self.features is not None:
            return self.features.wanted(len(chunk.tokens), needs)
        return () if chunk.skip_logits else needs.hidden_layers

    def was_read(self, one: PassRow, hidden: Sequence[Tensor], rest: Chunk | None) -> None:
        """Note that a pass has read a chunk of the prompt; `rest` is the unread rest of that piece of it."""
        if not self.pending:
            return
        if self.features is not None:
            self.features.add(dict(zip(one.capture, hidden, strict=True)), len(one.chunk.tokens))
        self.pending = [*([] if rest is None else [rest]), *self.pending[1:]]

    def keep_prompt(self, cache: KVCache) -> None:
        """Let the prefix cache, and requests that share it, keep the prompt, which its row of `cache` holds."""
        if self.known is not None and self.features is not None:
            self.known.store(cache, self.cache_row, self.features.cut, self.features.front())
            if self.shared is not None:
                self.shared.keep(self.known, cache, self.cache_row, self.features, drafting=self.drafting)

    def output(
        self,
        needs: Needs,
        draft: Draft,
        path: Sequence[int],
        tokens: tuple[int, ...],
        hidden: Sequence[Tensor],
        logits: Tensor,
        reserved: Collection[int] = (),
    ) -> VerifyOutput:
        """The output of a pass, for its drafter.

        Args:
            needs: needs of the drafter.
            draft: the verified draft.
            path, tokens: the accepted nodes, and the tokens added to the answer.
            hidden: features of each captured layer, at the tokens read and the nodes.
            logits: [1 + n, V] at the root and the nodes.
            reserved: ids that must never be drafted.
        """
        nodes, made = len(draft.tree), VerifyOutput(tuple(path[: len(tokens)]), tokens)
        layers = [layer[len(layer) - nodes - 1 :] for layer in hidden]
        if (read := self.features) is not None and not needs.nothing:
            layers = read.text(needs.hidden_layers)
            made = replace(made, prompt=read.prompt(self.context[: self.stats.prompt_tokens], needs.visual_layers))
        self.features = None
        if needs.hidden_layers:
            roots = len(layers[0]) - nodes  # tokens in front of the tree, the root included
            kept = [*range(roots), *(roots + node for node in made.path)]
            named = zip(needs.hidden_layers, layers, strict=True)
            made = replace(made, hidden={layer: features[kept] for layer, features in named})
        if needs.successors:
            made = replace(made, successors=successors_of(draft.tree, logits, needs.successors, reserved))
        return replace(made, path=tuple(self.proposed(draft, made.path)[1]))

    @property
    def over(self) -> bool:
        """True if nothing more will be emitted."""
        return self.finish is not None or self.error is not None

    def check_cancelled(self) -> None:
        """End the request if it was cancelled."""
        if self.finish is None and self.job.cancelled():
            self.finish = Finish.CANCELLED

    def check_time(self) -> None:
        """End the request if its `max_time` is over."""
        limit = self.request.max_time
        if self.finish is None and limit is not None and time.perf_counter() - self.ledger.started > limit:
            self.finish = Finish.TIME

    def fail(self, error: Exception) -> None:
        """End the request with an error: it has no answer."""
        self.error = self.error or error

    def drop_draft(self, why: str) -> None:
        """Count a draft that could not be read and is not verified; the first one is noted in the answer."""
        self.stats.bad_drafts += 1
        if self.stats.bad_drafts == 1:
            self.notes.append(f"A draft was dropped: {why}.")

    def tell(self, piece: Piece) -> None:
        """Pass a piece to `on_piece`; if that fails, the request ends with the error."""
        if self.job.on_piece is None or self.error is not None:
            return
        try:
            self.job.on_piece(piece)
        except (Exception, SystemExit) as error:
            log.exception("Whoever watches a request failed.")
            self.fail(error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}"))

    def provisional(self, target: Target) -> OnToken | None:
        """Return a callback that shows the drafter's tokens as provisional text; `None` if nobody wants them."""
        if self.job.on_piece is None or not self.job.provisional or self.request.tools is not None:
            return None
        text = AnswerText(target.text)

        def on_token(token: int) -> None:
            if 0 <= token < target.vocab_size:
                self.tell(Piece((token,), text.push((token,)), Origin.PROVISIONAL, self.request_id))

        return on_token

    def begin(self, known: CachedPrompt, target: Target) -> None:
        """Note the prompt and check that the answer fits after it.

        Raises:
            ContextLengthError: prompt and answer exceed the model's context.
            CrossdraftError: the request forbids every token.
        """
        prompt, self.known = known.prompt, known
        length = len(prompt)
        if length >= target.context:
            fewer = ", or show fewer clips, images or frames" if self.request.visuals else ""
            raise ContextLengthError(
                f"The prompt has {length} tokens, the model's context {target.context}; ask a shorter question{fewer}.",
                target.context,
                length,
            )
        wanted = self.request.max_new_tokens
        if wanted is None:
            wanted = target.defaults.limit(length, target.context)
            self.request = replace(self.request, max_new_tokens=wanted)
        if length + wanted > target.context:
            raise ContextLengthError(
                f"max_new_tokens is {wanted}, but after the prompt of {length} tokens the model's context has "
                f"room for {target.context - length}; ask for at most that many.",
                target.context,
                length,
                wanted,
            )
        forbidden = {token for token, bias in self.request.sampling.token_bias if bias == -math.inf}
        if forbidden.issuperset(range(target.vocab_size)):
            raise CrossdraftError(
                f"The request forbids all of the model's {target.vocab_size} tokens; leave some out of "
                "suppress_tokens, bad_words_ids or logit_bias."
            )
        self.notes.extend(note for note in prompt.notes if note not in self.notes)  # a drafter may have noted it
        if prompt.lossy is not None:
            self.stats.lossy_prefill, self.stats.lossless = prompt.lossy, False
        self.ends |= frozenset() if self.request.ignore_eos else target.eos
        self.context = prompt.input_ids.tolist()
        self.prompt_ids.set_result(text_ids(prompt.input_ids, target.reserved))
        self.stats.prompt_tokens, self.stats.cached_tokens = length, len(known.prefix)
        spelt, goes_on = self.request.stop_in == "tokens", self.request.continue_final_message
        text = target.text
        if self.request.tools is not None:
            self.reader, text = self.request.tools.reader(text)
        self.text = AnswerText(text, self.request.stops, self.context, spelt=spelt, goes_on=goes_on)
        if self.request.sampling.contextual:
            self.processors = TreeProcessors(
                self.request.sampling, target.model, self.context, sorted(self.ends), wanted
            )

    def keep_answer(self, cache: KVCache) -> None:
        """Let the prefix cache keep the prompt with its answer, as far as its row of `cache` holds them."""
        if self.known is not None and self.error is None and not self.pending:
            self.known.store_answer(cache, self.cache_row, self.tokens)

    def verify(self, tree: DraftTree, logits: Tensor) -> Acceptance:
        """Verify a tree, by raw logits [1 + n, V] at the root and at every node."""
        masks = self.masks
        # Masks and scores are needed along the answer alone; a row of scores of a large vocabulary takes a CPU long.
        if self.rule.invariant and (masks is not None or self._scores_slowly(tree, logits)):
            return follow(tree, lambda node, _: self._next(masks, tree.path_tokens(node), logits[node + 1 : node + 2]))
        if masks is None:
            return self._verified(tree, logits)
        paths = [tree.path_tokens(node) for node in range(ROOT, len(tree))]
        return self._verified(tree, logits, torch.stack([masks.mask(path) for path in paths]))

    def _scores_slowly(self, tree: DraftTree, logits: Tensor) -> bool:
        """True if a CPU has many rows of scores to make, also where its cores share them."""
        if logits.device.type != "cpu" or self.request.sampling.plain or self.processors is not None:
            return False
        return len(tree) >= 2 * torch.get_num_threads()

    def _next(self, masks: Masks | None, path: Sequence[int], logits: Tensor) -> int | None:
        """The target's own token after a path that it takes, by raw logits [1, V]; `None` = the next round tells."""
        if masks is None:
            return self._verified(DraftTree.empty(), logits, path=path).bonus
        try:
            if self.request.sampling.greedy and self.processors is None:
                likeliest = self._verified(DraftTree.empty(), logits, path=path).bonus
                if masks.allows(path, likeliest):
                    return likeliest
            return self._verified(DraftTree.empty(), logits, masks.mask(path)[None], path).bonus
        except CrossdraftError:  # the answer may have ended before
            if not path:
                raise
        return None

    def _verified(
        self, tree: DraftTree, logits: Tensor, masks: Tensor | None = None, path: Sequence[int] = ()
    ) -> Acceptance:
        """Apply the rule to a tree behind the answer and a path, whose root and nodes have `masks` [1 + n, V]."""
        context, answer = ([*self.context, *path], [*self.tokens, *path]) if path else (self.context, self.tokens)
        noise, sampling = Noise(self.seed, len(answer)), self.request.sampling
        masks = None if masks is None else to_device(masks, logits.device)
        if self.processors is not None:
            return verify_tree(self.rule, tree, self.processors.warp_tree(logits, tree, context, masks), noise, logits)
        if masks is None:
            return self.rule(tree, warp_tree(logits, tree, context, sampling, answer), noise, logits)
        forbidden = [token for token, bias in sampling.token_bias if bias == -math.inf and token < masks.shape[-1]]
        masks[:, forbidden] = False
        warped = warp_tree(masked(logits, masks), tree, context, sampling, answer)
        warped[impossible(masks)] = torch.nan
        return verify_tree(self.rule, tree, warped, noise, logits)

    def permitted(self, draft: Draft) -> Draft:
        """A draft without the nodes that the request's structure forbids.

        Drawn nodes whose parents may come stay, as they must not be dropped because of their value: the masked target
        refuses them.
        """
        if self.masks is None:
            return draft
        allowed = {ROOT, *self.masks.allowed(draft.tree)}
        parents, drawn_from = draft.tree.parents, draft.tree.drawn_from
        kept = (node in allowed or (drawn_from[node] >= 0 and parents[node] in allowed) for node in range(len(parents)))
        return draft.keep([node for node, keep in enumerate(kept) if keep])

    def free_drafts(self, nodes: int) -> list[Draft]:
        """Drafts that cost no drafter: from the request's texts, an earlier answer, and what its structure forces.

        Each has `nodes` nodes at most. Forced nodes come with a probability, each as likely as its siblings.
        """
        done = len(self.tokens)
        most = min(nodes, self.request.token_limit - done - 1)
        found = [] if self.texts is None else [self.permitted(self.texts.draft(most))]
        if most > 0 and self.before[:done] == tuple(self.tokens):
            again = DraftTree.chain(self.before[done : done + most])
            found.append(self.permitted(Draft(again, tuple(REPEATED**depth for depth in range(1, 1 + len(again))))))
        if self.masks is not None and most > 0:
            tree, probs = self.masks.forced(most), list[float]()
            for parent in tree.parents:
                probs.append(FORCED / len(tree.children(parent)) * (1.0 if parent == ROOT else probs[parent]))
            found.append(Draft(tree, tuple(probs)))
        return [draft for draft in found if len(draft.tree)]

    def with_free(self, draft: Draft, free: Sequence[Draft], nodes: int) -> Draft:
        """A draft of at most `nodes` nodes: its own, three quarters of them at most, and behind these free drafts."""
        self.added, most = 0, min(nodes, self.request.token_limit - len(self.tokens) - 1)
        if not free:
            return draft
        added = reduce(DraftTree.union, (one.tree for one in free))
        own = draft.first(max(most - len(added), most - most // 4))
        tree = own.tree.union(added).first(most)
        if self.rule.chains and not tree.is_chain:
            if len(draft.tree):
                return draft
            tree = DraftTree.chain(added.main_path_tokens)
        self.added = len(tree) - len(own.tree)
        return replace(own, tree=tree)

    def proposed(self, draft: Draft, path: Sequence[int]) -> tuple[Draft, list[int]]:
        """The draft and its accepted path as the drafter knows them, without added nodes."""
        own = len(draft.tree) - self.added
        return draft.first(own) if self.added else draft, [node for node in path if node < own]

    def emit(
        self, tree: DraftTree, accepted: Acceptance, logits: Tensor, origin: Origin, target: Target
    ) -> tuple[int, ...]:
        """Append accepted tokens (of `origin`) and the bonus, as far as the answer goes; returns what was appended.

        `logits` [1 + n, V] are the target's at the root and at every node.
        """
        tokens = (*(tree.tokens[node] for node in accepted.path), accepted.bonus)
        nodes = (ROOT, *accepted.path)
        if not self.tokens:
            self.stats.ttft_s = time.perf_counter() - self.ledger.started
        taken, texts = self._until_end(tokens, target)
        cut = len(taken) - (len(taken) == len(tokens))
        if self.request.logprobs:
            self._note_logprobs(taken, logits[[node + 1 for node in nodes[: len(taken)]]])
        first = len(self.tokens)
        self.tokens += taken
        self.context += taken
        if self.masks is not None:
            self.masks.commit(taken)
        if self.texts is not None:
            self.texts.commit(taken)
            self.stats.predicted, self.stats.predicted_accepted = self.texts.predicted, self.texts.accepted
        for part, source in ((slice(cut), origin), (slice(cut, len(taken)), Origin.TARGET)):
            if taken[part]:
                text = "".join(texts[part]) if self.request.stops else self.text.push(taken[part])
                self._tell(taken[part], text, source, first + (part.start or 0))
        self.end()
        return tuple(taken)

    def _note_logprobs(self, tokens: Sequence[int], logits: Tensor) -> None:
        """Keep the log-probabilities of tokens, by the raw logits [n, V] at each."""
        logprobs = logits.float().log_softmax(-1)
        self.logprobs += [logprobs[i, token].item() for i, token in enumerate(tokens)]
        most = min(self.request.top_logprobs, logprobs.shape[-1])
        if most:
            top = logprobs.topk(most)
            pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            self.top_logprobs += [tuple(zip(ids, values, strict=True)) for ids, values in pairs]

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
            if token in self.ends:
                self.finish = Finish.EOS
            elif self.text.stopped:
                self.finish = Finish.STOP
            elif len(self.tokens) + len(taken) == self.request.token_limit:
                self.finish = Finish.LENGTH
            if self.finish is not None:
                return taken, texts
        self.check_time()
        return taken, texts

    def _tell(self, tokens: Sequence[int], text: str, origin: Origin, first: int) -> None:
        """Hand out a piece whose tokens are those of the answer from `first` on; without any, the last one."""
        if self.reader is not None:
            text = self.reader.push(text, last=not tokens)
        calls = () if self.reader is None else self.reader.taken()
        if not (tokens or text or calls):
            return
        part = slice(first, first + len(tokens))
        logprobs = tuple(self.logprobs[part]) or None
        tops = tuple(self.top_logprobs[part]) or None
        length = self.stats.prompt_tokens
        self.pieces.append(Piece(tuple(tokens), text, origin, self.request_id, logprobs, tops, length, calls))
        self.tell(self.pieces[-1])

    def end(self) -> None:
        """Hand out the text that was held back, if the answer has ended, so that the stream is the whole answer."""
        if self.finish is not None and self.error is None:
            origin = self.pieces[-1].origin if self.pieces else Origin.TARGET
            self._tell((), self.text.flush(), origin, len(self.tokens))

    def answer(self) -> Answer:
        """Build the answer as the user receives it."""
        return Answer(
            text="".join(piece.text for piece in self.pieces),
            tokens=tuple(self.tokens),
            pieces=tuple(self.pieces),
            finish=self.finish or Finish.CANCELLED,
            stats=self.stats,
            timeline=self.ledger.timeline,
            logprobs=tuple(self.logprobs) if self.request.logprobs else None,
            notes=(*self.notes, *filter(None, [self.stats.undrafted])),
            drafter_error=self.drafter_error,
            top_logprobs=tuple(self.top_logprobs) if self.request.logprobs and self.request.top_logprobs else None,
        )
