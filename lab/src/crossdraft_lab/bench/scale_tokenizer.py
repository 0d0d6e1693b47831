"""A tokenizer of Llama's kind and of any size, made of the alphabet alone: nothing is trained or downloaded.

The layout is SentencePiece's BPE as `tokenizers` writes it: <unk> <s> </s>, the 256 bytes, then pieces. Pieces are the
printable characters, then pairs, triples and longer runs of letters, each the merge of a shorter run and a letter. So
any ids decode to letters; a text has about twice as many tokens as in Llama's own vocabulary.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, processors

from crossdraft.errors import CrossdraftError

UNK, BOS, EOS, PAD = "<unk>", "<s>", "</s>", "<pad>"
SPACE = "▁"  # how SentencePiece writes a space
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"  # by their frequency in English, so that common runs come first
CONTEXT = 4096  # tokens


def llama_tokenizer(size: int, added: Sequence[str] = ()) -> Tokenizer:
    """A byte-fallback BPE of exactly `size` ids, then one for each `added` special token; encoding puts `<s>` in front.

    >>> tokenizer = llama_tokenizer(32000, ["<image>"])
    >>> tokenizer.get_vocab_size(), tokenizer.token_to_id("<image>")
    (32001, 32000)
    >>> tokenizer.encode("the car").tokens
    ['<s>', '▁t', 'he', '▁c', 'ar']

    Raises:
        CrossdraftError: `size` cannot hold the bytes and the characters.
    """
    printable = [SPACE, *map(chr, range(33, 127))]
    first = [UNK, BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256)), *printable]
    if size < len(first):
        raise CrossdraftError(f"A vocabulary of Llama's kind needs at least {len(first)} ids, got {size}.")
    merges = list(islice(_merges(), size - len(first)))
    vocabulary = {piece: i for i, piece in enumerate([*first, *(left + right for left, right in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=UNK, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([UNK, BOS, EOS, *added])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
    )
    return tokenizer


def _merges() -> Iterator[tuple[str, str]]:
    """Pairs of an earlier run and a letter: all runs of two letters, then of three, without end."""
    runs = [SPACE, *LETTERS]
    while True:
        merges = [(run, letter) for run in runs for letter in LETTERS]
        yield from merges
        runs = [run + letter for run, letter in merges]


def write_tokenizer(folder: Path, tokenizer: Tokenizer, *, pad: str = PAD, processor: str | None = None) -> None:
    """Write a tokenizer and its settings as transformers 4.4x saved a LlamaTokenizerFast.

    Args:
        folder: which exists.
        tokenizer: as `llama_tokenizer` makes it.
        pad: the padding token, one of its tokens.
        processor: the processor's class, where the checkpoint has one.
    """
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": pad, "unk_token": UNK}
    added = {i: token.content for i, token in sorted(tokenizer.get_added_tokens_decoder().items())}
    settings: dict[str, object] = {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": {
            str(i): dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
            | {"content": token, "special": True}
            for i, token in added.items()
        },
        "clean_up_tokenization_spaces": False,
        "legacy": False,
        "model_max_length": CONTEXT,
        "padding_side": "left",
        "tokenizer_class": "LlamaTokenizer",
        **special,
    }
    settings |= {} if processor is None else {"processor_class": processor}
    write_json_file(folder / "tokenizer_config.json", settings)
    write_json_file(folder / "special_tokens_map.json", special)
    further = {token: i for i, token in added.items() if token not in (UNK, BOS, EOS)}
    if further:
        write_json_file(folder / "added_tokens.json", further)


def write_json_file(path: Path, content: object) -> None:
    """Write JSON as the hub's files have it."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
