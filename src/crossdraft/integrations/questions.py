"""The question in a prompt that another program has made; a drafter fills the question into a prompt of its own."""

from collections.abc import Sequence

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from crossdraft.errors import CrossdraftError
from crossdraft.video.inputs import ClipText, placeholder_ids, placeholder_of, question_inputs

MARK = "QUESTION"  # stands for a question in a prompt of ours


def question_in(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> str:
    """Return the text after the last visual token, without the text that ends every prompt of that model.

    Args:
        config, tokenizer: the target's.
        prompt: the prompt's tokens.

    Raises:
        CrossdraftError: there is no such text.
    """
    visual = placeholder_ids(config)
    behind = next((i for i in range(len(prompt), 0, -1) if prompt[i - 1] in visual), 0)
    text = _text(tokenizer, prompt[behind:])
    clip = ClipText(placeholder_of(config, "video"), 1)
    usual = _text(tokenizer, question_inputs(config, tokenizer, clip, MARK)["input_ids"][0].tolist())
    text = text.removesuffix(usual.rpartition(MARK)[2].strip()).strip()
    if not text:
        raise CrossdraftError("The prompt ends with what is seen, so that the drafter knows no question; name it.")
    return text


def _text(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()
