"""The text drafter's own vocabulary: a byte-level BPE over ASCII, so small that its table is not most of the model."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from crossdraft.errors import CrossdraftError
from crossdraft.train.reference.tokenizer import BOS, EOS, PAD

UNKNOWN = "<unk>"
SPECIALS = (UNKNOWN, BOS, EOS, PAD)
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))


def train_text_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE of `vocab_size` ids; encoding adds `<s>` in front.

    The road world is told in ASCII. Rows for the other 160 bytes would be a tenth of the model and never be trained;
    such a byte of a user's question is read as `<unk>`.

    Raises:
        CrossdraftError: the texts hold too few merges.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    marks = {mark for char in ALPHABET for mark in byte_level.pre_tokenize_str(char)[0][0]}
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(marks),
        limit_alphabet=len(marks),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise CrossdraftError(
            f"The texts make a vocabulary of {tokenizer.get_vocab_size()} ids, not {vocab_size}; raise "
            "text_drafter.scenes, or lower text_drafter.vocab_size."
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, SPECIALS.index(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
