r"""The prompt, cut where a clip's questions part: a shared prefix that ends with the visual tokens, and a branch.

<s>USER: <video>*400 \n{question} ASSISTANT: {answer}</s>
|---- prefix -------|----------- branch -----------------|
"""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class PromptCodec:
    """Token ids of prefix and branches for one model's placeholder (`<video>` or `<event>`)."""

    tokenizer: PreTrainedTokenizerFast
    placeholder: str

    def prefix_ids(self) -> list[int]:
        """Ids in front of the visual tokens, `<s>` first."""
        return self.tokenizer(f"USER: {self.placeholder}")["input_ids"][:-1]

    def question_ids(self, question: str) -> list[int]:
        """Ids between the visual tokens and the answer."""
        return self.tokenizer(f"\n{question} ASSISTANT:", add_special_tokens=False)["input_ids"]

    def answer_ids(self, answer: str, *, whole: bool = True) -> list[int]:
        """Ids of the answer, `</s>` included unless it was cut short."""
        ids = self.tokenizer(f" {answer}", add_special_tokens=False)["input_ids"]
        return [*ids, int(self.tokenizer.eos_token_id)] if whole else ids

    def text(self, ids: list[int]) -> str:
        """The answer's text: up to `</s>`, stripped."""
        return self.tokenizer.decode(ids, skip_special_tokens=True).strip()
