"""Structure: what an answer must look like, as users and clients say it; bounded, and compiled once per tokenizer.

Masks come from llguidance (Earley parser over a lexer of derivatives, in Rust): it compiles without a table per state,
so a schema costs milliseconds; most of its limits are counted in steps. What they leave open is bounded here.
"""

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args
from weakref import WeakKeyDictionary

import numpy as np

from crossdraft.checks import choice, text
from crossdraft.engine.detokenize import TokenText
from crossdraft.errors import CrossdraftError
from crossdraft.files import parse_json

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from crossdraft.structure.masks import GrammarMasks

Kind = Literal["json", "regex", "choice", "grammar"]  # as llguidance names them, too
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_TEXT = 64 * 1024  # characters of a schema, or of all choices
# Of others: some 2,500 rules, each of the next, overflow the library's stack; memory is of the square of an expression.
MOST_OF = {"grammar": 4096, "regex": 16_384}
MOST_MULTIPLE = 1000  # of a schema's `multipleOf`, and its inverse
MOST_CHOICES = 1024
LONGEST_S = 1.0  # of compiling
KEPT = 32  # compiled structures of a tokenizer
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,32}"  # between two parts of JSON: enough for an indent, no endless blanks
MOST_SYMBOLS = 20_000  # of a grammar's productions
MOST_ITEMS = 10_000  # of the parser, for one token's mask


@dataclass(frozen=True)
class Structure:
    """A constraint on an answer: the target chooses, greedily or by sampling, among the tokens that fulfil it.

    Made by `json`, `regex`, `choice` or `grammar`. The answer also ends early where `max_new_tokens` or a stop string
    ends it: it is then the beginning of a text that fulfils the constraint.

    Args:
        kind: one of `KINDS`.
        text: a JSON schema, a regular expression (Rust's syntax), a JSON list of texts, or a grammar (Lark or GBNF).

    Raises:
        CrossdraftError: it is no text, or too long.
    """

    kind: Kind
    text: str

    def __post_init__(self) -> None:
        choice("kind", self.kind, KINDS)
        text(self.kind, self.text, "yes|no")
        most = MOST_OF.get(self.kind, MOST_TEXT)
        if len(self.text) > most:
            raise CrossdraftError(
                f"The answer's {self.kind} has {len(self.text):,} characters, and {most:,} are the limit; "
                "make it shorter."
            )

    @classmethod
    def json(cls, schema: Mapping[str, Any] | str | bool | None = None) -> "Structure":
        """JSON by a schema, as a mapping or its text; without one, any JSON object.

        Raises:
            CrossdraftError: it is no JSON object.
        """
        try:
            given = {"type": "object"} if schema is None else parse_json(schema) if isinstance(schema, str) else schema
            written = json.dumps({} if given is True else given)
        except (TypeError, ValueError, RecursionError) as error:
            raise CrossdraftError(f"The JSON schema cannot be read: {error}.") from None
        if not written.startswith("{"):
            raise CrossdraftError(f"The JSON schema is {written:.100}; give an object.")
        return cls("json", written)

    @classmethod
    def regex(cls, expression: str) -> "Structure":
        """A text that a regular expression matches from its beginning to its end."""
        return cls("regex", expression)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> "Structure":
        """One of several texts.

        Raises:
            CrossdraftError: there is none, there are too many, or one is no text or empty.
        """
        if isinstance(texts, str) or not texts or not all(isinstance(one, str) and one for one in texts):
            raise CrossdraftError(f"choice is {texts!r:.200}; give a list of texts, none of them empty.")
        if len(texts) > MOST_CHOICES:
            raise CrossdraftError(f"choice has {len(texts):,} texts, and {MOST_CHOICES:,} are the limit; give fewer.")
        return cls("choice", json.dumps([*texts]))

    @classmethod
    def grammar(cls, text: str) -> "Structure":
        """A text of a context-free grammar, in llguidance's Lark or llama.cpp's GBNF."""
        return cls("grammar", text)

    def check(self) -> None:
        """Compile it for a tokenizer of bytes, so that what cannot be used is refused before a model is loaded.

        Raises:
            CrossdraftError: it cannot be compiled, or llguidance is not installed.
        """
        Compiled(_llguidance().LLTokenizer("byte")).matchers(self)

    def begin(self, text: TokenText, vocabulary: int, ends: Sequence[int]) -> "GrammarMasks":
        """Make the masks of an answer, as `engine.structure.MaskSource`.

        Raises:
            CrossdraftError: it cannot be compiled, the tokenizer is of another kind, or no id ends an answer.
        """
        from crossdraft.structure.masks import GrammarMasks

        compiled = compiled_for(text.tokenizer, vocabulary, tuple(ends))
        make, reserved = partial(compiled.matchers, self), set(text.special) - {*ends}
        return GrammarMasks(compiled.tokenizer, compiled.byte_tokens, make, vocabulary, ends, reserved)


class Compiled:
    """The structures that were compiled for one tokenizer, the latest `KEPT` of them, as grammars or refusals.

    A matcher is made anew for each answer: its copies share what its lexer has learned.

    Args:
        tokenizer: llguidance's form of the tokenizer.
    """

    def __init__(self, tokenizer: "LLTokenizer") -> None:
        self.tokenizer = tokenizer
        self.byte_tokens = np.full(256, tokenizer.eos_token)
        for token in range(tokenizer.vocab_size):
            if len(spelt := tokenizer.decode_bytes([token])) == 1:
                self.byte_tokens[ord(spelt)] = token
        self._kept = OrderedDict[Structure, tuple[str, ...] | str]()
        self._lock = threading.Lock()

    def matchers(self, structure: Structure) -> "tuple[LLMatcher, LLMatcher | None]":
        """Matchers of a structure: its own, and for JSON one of its text without blanks.

        Raises:
            CrossdraftError: it cannot be compiled, now or when it was tried before.
        """
        with self._lock:
            found = self._kept.pop(structure, None)
        if isinstance(found, str):
            self._keep(structure, found)
            raise CrossdraftError(found)
        try:
            grammars = found or _grammars(structure)
            start = time.thread_time()  # other work on the machine does not count
            wide, *dense = [self._matcher(grammar) for grammar in grammars]
        except (ValueError, RecursionError) as error:
            lines = str(error).splitlines()
            said = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
            refusal = f"The answer's {structure.kind} cannot be used: {said.rstrip('.'):.300}."
        else:
            took = time.thread_time() - start
            if found is not None or took <= LONGEST_S:
                self._keep(structure, grammars)
                return wide, (dense or [None])[0]
            refusal = (
                f"The answer's {structure.kind} took {took:.1f} s to compile, and {LONGEST_S:g} s is the limit; make "
                "it simpler."
            )
        self._keep(structure, refusal)
        raise CrossdraftError(refusal)

    def _keep(self, structure: Structure, found: tuple[str, ...] | str) -> None:
        with self._lock:
            self._kept[structure] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def _matcher(self, grammar: str) -> "LLMatcher":
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(max_grammar_size=MOST_SYMBOLS, step_max_items=MOST_ITEMS, verbose_errors=False)
        matcher = LLMatcher(self.tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher


def _grammars(structure: Structure) -> tuple[str, ...]:
    """Grammars as llguidance reads them: of the structure, and for JSON of its text without blanks.

    Raises:
        ValueError: the structure cannot be written as one.
    """
    from llguidance import LLMatcher, grammar_from

    if structure.kind == "grammar":
        _check_schema([*_objects(structure.text)])
    if structure.kind != "json":
        return (grammar_from(structure.kind, structure.text),)
    _check_schema(parse_json(structure.text))
    made = LLMatcher.grammar_from_json_schema
    wide = made(structure.text, overrides={"whitespace_pattern": WHITESPACE})
    return wide, made(structure.text, overrides={"whitespace_flexible": False})


def _objects(text: str) -> Iterator[Any]:
    """Yield the JSON objects in a text, such as the schemas in a grammar."""
    for brace in re.finditer("{", text):
        with suppress(ValueError, RecursionError):
            yield json.JSONDecoder().raw_decode(text, brace.start())[0]


def _check_schema(schema: Any) -> None:
    """Refuse a schema that compiles to a huge automaton, with as many states as a `multipleOf`, or by a long pattern.

    Raises:
        ValueError: it has such a number, or text.
    """
    waiting, most = [schema], MOST_MULTIPLE
    while waiting:
        part = waiting.pop()
        if isinstance(part, str) and len(part) > MOST_OF["regex"]:
            raise ValueError(f"a text in it has {len(part):,} characters, and {MOST_OF['regex']:,} are the limit")
        waiting += part if isinstance(part, list) else [*part, *part.values()] if isinstance(part, dict) else ()
        number = part.get("multipleOf") if isinstance(part, dict) else None
        fits = not isinstance(number, int | float) or 1 / most <= abs(number) <= most
        if not fits or (isinstance(number, float) and float(f"{number:.5g}") != number):
            raise ValueError(f"multipleOf is {number}; from 1/{most} to {most}, in five digits, it can be used")


def _llguidance() -> Any:
    try:
        return import_module("llguidance")
    except ImportError:
        raise CrossdraftError(
            "Structured answers need llguidance: pip install -e '.[structure]' in the checkout."
        ) from None


_compiled = WeakKeyDictionary[Any, dict[tuple[int, tuple[int, ...]], Compiled]]()
_making = threading.Lock()


def compiled_for(tokenizer: Any, vocabulary: int, ends: tuple[int, ...]) -> Compiled:
    """Structures that were compiled for a tokenizer so far.

    Raises:
        CrossdraftError: llguidance is not installed, the tokenizer is none of Hugging Face's fast ones, or no id ends
            an answer.
    """
    _llguidance()
    if not ends:
        raise CrossdraftError("A structured answer needs a token that ends it, and this checkpoint names none.")
    with _making:
        try:
            from llguidance.hf import from_tokenizer

            made = _compiled.setdefault(tokenizer, {})
            if (vocabulary, ends) not in made:
                made[vocabulary, ends] = Compiled(from_tokenizer(tokenizer, n_vocab=None, eos_token=[*ends]))
        except (TypeError, ValueError, AttributeError) as error:
            raise CrossdraftError(
                f"Structured answers need a fast tokenizer of Hugging Face, and this target's is a "
                f"{type(tokenizer).__name__}: {error}."
            ) from None
        return made[vocabulary, ends]
