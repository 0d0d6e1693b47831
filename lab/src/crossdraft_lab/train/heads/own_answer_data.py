"""Training data of adapters on the drafter's own answer: that answer, and the target's to the same question.

position      0     1     2    …   A
tokens        pad   x(0)  x(1) …   x(A-1)     the target's answer; at t stands what predicts x(t)
target        f(0)  f(1)  f(2) …              its feature that x(t) came from
drafter       o(0)  o(1)  o(2) …  o(n-1)      its own t-th token, feature and logits; n is its own length
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from crossdraft.heads.networks.train_batch import pad_batch
from crossdraft_lab.align.networks.base import TARGET
from crossdraft_lab.align.networks.own_answer import IndexedBatch, OwnAnswer
from crossdraft_lab.align.own_answer_drafter import own_answer_of
from crossdraft_lab.train.heads.align_data import PairedAnswers, drafter_states, kept_by_clip, own_answers
from crossdraft_lab.train.heads.state_file import StateFile
from crossdraft_lab.train.reference.batches import pack
from crossdraft_lab.train.reference.models import TrainableEventGPT


@dataclass(frozen=True)
class OwnAnswerData:
    """Batches; what the frozen drafter says to a question is found out once, and kept on disk.

    All questions about a clip are answered together, as `AlignmentData` reads all answers about one: the drafter's has
    the same bits whether it was kept or is found out anew because there was no room for it.

    Args:
        answers: which, step by step.
        model: the drafter.
        own: most tokens of its answers.
        top: of its likeliest tokens that are read at each position.
        kept: what it said, by answer.
    """

    answers: PairedAnswers
    model: TrainableEventGPT
    own: int
    top: int
    kept: StateFile = field(default_factory=StateFile)

    @torch.no_grad()
    def batch(self, step: int) -> tuple[IndexedBatch, Tensor]:
        """Both answers to the step's questions, and [rows, T, H] the target's features."""
        answers = self.answers
        numbers, depth = answers.numbers(step), answers.store.index.owner.depth
        said = kept_by_clip(answers, self.kept, step, numbers, partial(self._say, step))
        stored = [answers.store.answer(number, (depth,)) for number in numbers]
        tokens = [pad(one.tokens[one.start :], (1, 0), value=answers.codec.pad_id) for one in stored]
        features = [one.hidden[depth][one.start - 1 :].float() for one in stored]
        plain = pad_batch(tokens, [1] * len(stored), {TARGET: features})
        own = _side_by_side([said[number] for number in numbers], plain.tokens.shape[1])
        batch = IndexedBatch(plain.tokens, plain.hidden, plain.starts, plain.lengths, own=own)
        return batch, plain.hidden[TARGET]

    def _say(self, step: int, clip: int, numbers: Sequence[int]) -> dict[int, Sequence[Tensor]]:
        """Decode the drafter's answers to these questions about one of the step's clips, with their features.

        For each its tokens [n], features [n, S], ids and log-probabilities [n, K]; see `OwnAnswer`.
        """
        answers, model = self.answers, self.model
        visual = answers.features.visual(step, [clip])
        said = own_answers(model, answers, visual, numbers, self.own)
        pairs = [(answers.question(number), own) for number, own in zip(numbers, said, strict=True)]
        rows = pack(pairs, answers.codec.pad_id)
        states = drafter_states(model, answers.codec, visual, rows)[-1]
        found: dict[int, Sequence[Tensor]] = {}
        for row, (number, own, start) in enumerate(zip(numbers, said, rows.answer_start.tolist(), strict=True)):
            mine = states[row : row + 1, start : start + len(own)].clone()
            answer = own_answer_of(torch.tensor([own]), mine, model.model.get_output_embeddings(), self.top)
            found[number] = (answer.tokens[0], answer.states[0], answer.ids[0], answer.log_probs[0])
        return found


def _side_by_side(said: Sequence[Sequence[Tensor]], width: int) -> OwnAnswer:
    """The first `width` tokens of each, padded to as many."""
    cut = [[part[:width] for part in parts] for parts in zip(*said, strict=True)]
    lengths = torch.tensor([len(tokens) for tokens in cut[0]])
    rows = [pad_sequence(parts, batch_first=True) for parts in cut]
    tokens, states, ids, log_probs = (pad(one, (0, 0) * (one.ndim - 2) + (0, width - one.shape[1])) for one in rows)
    return OwnAnswer(tokens, states, ids, log_probs, lengths)
