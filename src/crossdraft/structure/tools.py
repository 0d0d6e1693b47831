"""Tools that an answer may call, or must."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from crossdraft.checks import NamedFields, choice
from crossdraft.engine.detokenize import TokenText
from crossdraft.errors import CrossdraftError
from crossdraft.messages import refuse_tools
from crossdraft.structure.call_forms import FORMS, CallForm, CallReader, Schemas
from crossdraft.structure.call_grammar import CallGrammar, MarkedTokenizer, call_grammar
from crossdraft.structure.structure import compiled_for

if TYPE_CHECKING:
    from crossdraft.structure.masks import GrammarMasks

MOST_TOOLS = 128  # OpenAI's limit
MOST_DEFINITIONS = 256 * 1024  # bytes of all definitions, as JSON
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # OpenAI's rule
SHAPE = '{"type": "function", "function": {"name": …, "description": …, "parameters": {a JSON schema of an object}}}'


@dataclass(frozen=True)
class Tools(NamedFields):
    """Tools that an answer may call, or must; `Answer.tool_calls` has the calls.

    Args:
        definitions: the tools, as OpenAI and chat templates define them.
        choice: `auto`: the model decides; `required`: the answer is calls.
        only: the name of the one tool that the answer must call, once.
        parallel: an answer may have several calls; otherwise those after the first are left out.
        form: the form of calls, one of `call_forms.FORMS`; `None` = the one that the chat template asks for.

    Raises:
        CrossdraftError: a definition has another shape, or there are too many, or they are too long.
    """

    definitions: Sequence[Mapping[str, Any]]
    choice: Literal["auto", "required"] = "auto"
    only: str | None = None
    parallel: bool = True
    form: str | None = None

    def __post_init__(self) -> None:
        choice("choice of tools", self.choice, ("auto", "required"))
        choice("form of calls", self.form, (None, *FORMS))
        try:
            size = len(json.dumps([*self.definitions], ensure_ascii=False).encode())
            names = [NAME.fullmatch(one["function"]["name"])[0] for one in self.definitions]  # type: ignore[index]
            shaped = all(isinstance(one.get("properties", {}), Mapping) for one in self.schemas.values())
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
            size, names, shaped = 0, list[str](), False
        if not shaped:
            raise CrossdraftError(
                f"One of the tools is not {SHAPE}, or no JSON, or its name not 1 to 64 of a-zA-Z0-9_-."
            )
        if size > MOST_DEFINITIONS:
            raise CrossdraftError(
                f"The tools have {size:,} bytes, and {MOST_DEFINITIONS:,} are the limit; shorten them."
            )
        if not 0 < len(names) <= MOST_TOOLS or len({*names}) < len(names):
            raise CrossdraftError(f"There are {len(names)} tools; give 1 to {MOST_TOOLS} with different names.")
        if self.only is not None:
            choice("tool", self.only, names)

    @property
    def schemas(self) -> Schemas:
        """JSON schema of each tool's parameters, by the tools' names."""
        functions = [one["function"] for one in self.definitions]
        return {one["name"]: one.get("parameters") or {"type": "object", "properties": {}} for one in functions}

    @property
    def structure(self) -> "Tools | None":
        """The mask source of an answer that must call; `None` = it is free."""
        return self if self.choice == "required" or self.only is not None else None

    @property
    def _several(self) -> bool:
        return self.parallel and self.only is None

    def reader(self, text: TokenText) -> tuple[CallReader, TokenText]:
        """Make a reader of one answer's calls, and the tokens' text with the marks of calls.

        Raises:
            CrossdraftError: the chat template writes no tools, or their calls in a form that is not known.
        """
        form = self._form(text.tokenizer)
        return CallReader(form, self.schemas, None if self._several else 1), text.showing(form.text)

    def begin(self, text: TokenText, vocabulary: int, ends: Sequence[int]) -> "GrammarMasks":
        """Make the masks of an answer that must call, as `engine.structure.MaskSource`.

        Raises:
            CrossdraftError: as `Structure.begin` and `reader`.
        """
        from crossdraft.structure.masks import GrammarMasks

        form, compiled = self._form(text.tokenizer), compiled_for(text.tokenizer, vocabulary, tuple(ends))
        added: dict[str, int] = text.tokenizer.get_added_vocab()
        marks = {name: token for name, token in added.items() if name in form.text}
        schemas = {name: one for name, one in self.schemas.items() if self.only in (None, name)}
        try:
            grammar = CallGrammar("grammar", call_grammar(form, schemas, marks, several=self._several))
        except (AttributeError, TypeError, ValueError) as error:
            raise CrossdraftError(f"The parameters of the tools cannot be used: {error}.") from None
        reserved = {*text.special} - {*ends, *marks.values()}
        tokenizer: Any = MarkedTokenizer(compiled.tokenizer, {*marks.values()})
        make = partial(compiled.matchers, grammar)
        return GrammarMasks(tokenizer, compiled.byte_tokens, make, vocabulary, ends, reserved)

    def _form(self, tokenizer: Any) -> CallForm:
        if self.form is not None:
            return FORMS[self.form]
        template = ""
        if getattr(tokenizer, "chat_template", None):
            template = tokenizer.get_chat_template(tools=[*self.definitions]).replace('\\"', '"')
        if "tools" not in template:
            refuse_tools(getattr(tokenizer, "name_or_path", ""), (), {"tools": self.definitions})
        for form in FORMS.values():
            if all(part in template for part in form.known_by):
                return form
        raise CrossdraftError(
            "The chat template asks for calls of tools in a form that is not known here; say which one it is like, by "
            f"Tools(form=…): {', '.join(FORMS)}."
        )
