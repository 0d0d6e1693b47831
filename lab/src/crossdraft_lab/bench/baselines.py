"""Baselines: Hugging Face `generate` on the very same target: alone, with prompt lookup, and assisted.

All get their inputs from the same `prepare` as our engine, inside the clock. Everything else is HF's own choice: its
growing cache, prompt lookup with 10 tokens and n-grams of 2, assistants that draft 20 tokens or stop below a
confidence of 0.4.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import Cache
from transformers.generation.streamers import BaseStreamer
from transformers.modeling_outputs import CausalLMOutputWithPast

from crossdraft.cli.cores import Cores
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.processors import generation_config
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt import EventGPTConfig
from crossdraft.structure.structure import Structure, compiled_for
from crossdraft_lab.bench.measure import Run
from crossdraft_lab.bench.workload import Item

LOOKUP_TOKENS = 10


def blank_window(source: str) -> NDArray[np.uint8] | None:
    """Events for a blind twin's requests: `None` for the shipped twin, which never looks, else white frames."""
    return None if source == "blind" else white_frames(EventGPTConfig.from_pretrained(source))


def white_frames(config: EventGPTConfig) -> NDArray[np.uint8]:
    """White frames, uint8 [T, s, s, 3], in the size that the configuration states."""
    side = config.vision_config.image_size
    return np.full((config.num_event_frames, side, side, 3), 255, np.uint8)


@contextmanager
def clocked_passes(*modules: nn.Module | None) -> Iterator[list[tuple[float, float]]]:
    """Collect start and end, in seconds, of each forward of these modules within the context; `None` is none."""
    starts: list[float] = []
    spans: list[tuple[float, float]] = []

    def end(*_: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the caller reads the result next in any case
        spans.append((starts.pop(), time.perf_counter()))

    with ExitStack() as hooks:
        for module in filter(None, modules):
            begin = module.register_forward_pre_hook(lambda *_: starts.append(time.perf_counter()))
            hooks.callback(begin.remove)
            hooks.callback(module.register_forward_hook(end).remove)
        yield spans


def seconds_in(spans: Sequence[tuple[float, float]], until: float = float("inf")) -> float:
    """Total time of the passes that ended by `until`."""
    return sum(end - start for start, end in spans if end <= until)


class TokenTimes(BaseStreamer):
    """Times at which `generate` handed out each step's tokens; the prompt, its first `put`, is skipped."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self._prompt = True

    def put(self, value: Tensor) -> None:
        """Note the time of a step's tokens; called by `generate`."""
        if self._prompt:
            self._prompt = False
        else:
            self.at.append(time.perf_counter())

    def end(self) -> None:
        """Do nothing at the end; called by `generate`."""


class LibraryMask(LogitsProcessor):
    """The library's own mask for Hugging Face's `generate`, one matcher for the one answer; nothing of the engine's."""

    def __init__(self, target: Target, structure: Structure, prompt: int) -> None:
        compiled = compiled_for(target.text.tokenizer, target.vocab_size, tuple(target.defaults.eos))
        self._matcher, _ = compiled.matchers(structure)
        self._read, self._ends = prompt, [*target.defaults.eos]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Scores [1, V] after a context [1, length]."""
        self._matcher.consume_tokens(input_ids[0, self._read :].tolist())
        self._read = input_ids.shape[1]
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        allowed = torch.from_numpy(bits.view(bool)[: scores.shape[-1]].copy())
        allowed = torch.nn.functional.pad(allowed, (0, scores.shape[-1] - len(allowed)))
        allowed[self._ends] = self._matcher.is_accepting()
        return scores.masked_fill(~allowed.to(scores.device), -torch.inf)


class HFBaseline:
    """`generate` of the target's own class.

    Args:
        target: gives the model and its inputs.
        cores: cores that the baseline may use.
        lookup: draft by copying from the prompt and the answer so far.
        assistant: model to draft with.
        tokenizer: the target's, where the checkpoint or a request has stop strings.
    """

    def __init__(
        self,
        target: Target,
        cores: Cores | None = None,
        *,
        lookup: bool = False,
        assistant: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        self.target = target
        self.cores = cores
        self.lookup = lookup
        self.assistant = assistant
        self.tokenizer = tokenizer
        self.workers: tuple[int, ...] = ()

    @torch.inference_mode()
    def answer(self, item: Item) -> Run:
        start = time.perf_counter()
        prompt = self.target.prepare(item.request)
        prepared = time.perf_counter()
        times = TokenTimes()
        request = self.target.defaults.resolve(item.request)
        config = self.config(request, len(prompt))
        if request.sampling.seed is not None:
            torch.manual_seed(request.sampling.seed)  # HF draws from torch's global generator
        structure, masks = request.structure, LogitsProcessorList()
        if isinstance(structure, Structure):
            masks.append(LibraryMask(self.target, structure, len(prompt)))
        model: Any = self.target.model
        with clocked_passes(model) as passes, clocked_passes(self.assistant) as drafts, saying_nothing(model):
            ids = model.generate(
                **self.inputs(prompt),
                generation_config=config,
                logits_processor=masks,
                assistant_model=self.assistant,
                streamer=times,
                tokenizer=self.tokenizer if config.stop_strings else None,
            )
        end = time.perf_counter()
        tokens = tuple(ids[0, len(prompt) :].tolist())
        first_pass = passes[0][1]
        hidden = seconds_in(drafts, first_pass)
        stages = {
            "prepare": prepared - start,
            "prefill": first_pass - prepared - hidden,  # encoding included
            "draft": seconds_in(drafts),
            "verify": seconds_in(passes) - seconds_in(passes, first_pass),
        }
        stages["other"] = end - start - sum(stages.values())
        return Run(tokens=tokens, total_s=end - start, ttft_s=times.at[0] - start, stages_s=stages, rounds=len(passes))

    def close(self) -> None:
        """Do nothing: no other process runs."""

    def inputs(self, prompt: Prompt) -> dict[str, Tensor]:
        """Build the arguments of `generate` for a prompt, a batch of one, on the model's device and in its dtype."""
        device, dtype = self.target.device, self.target.model.dtype
        ids = prompt.input_ids[None].to(device)
        features = {name: value.to(device) for name, value in prompt.features.items()}
        cast = {name: v.to(dtype) if v.is_floating_point() else v for name, v in features.items()}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **cast}

    def config(self, request: Request, prompt: int) -> GenerationConfig:
        """Settings of `generate` equal to those that our engine uses for the resolved request."""
        limit = request.max_new_tokens or self.target.defaults.limit(prompt, self.target.context)
        config = generation_config(request.sampling, sorted(self.target.eos), prompt, limit)
        config.stop_strings = list(request.stops) or None
        config.max_time = request.max_time
        if self.lookup:
            config.prompt_lookup_num_tokens = LOOKUP_TOKENS
            # Lookup would copy the clip's placeholders after "USER:" into its first draft, and the forward would
            # then refuse the prompt ("features and tokens do not match"); it leaves out what may not be generated.
            config.suppress_tokens = sorted(self.target.traits.visual_ids.union(request.sampling.suppress_tokens or ()))
        return config


@contextmanager
def saying_nothing(model: Any) -> Iterator[None]:
    """Hide a model's own generation settings for a while: `generate` would fill gaps of a request from them."""
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


class Assistant(LlamaForCausalLM):
    """The blind twin's language model as an assistant of HF's kind, in the fairest form that HF can use.

    HF (5.17 to 5.23) has an assistant read the target's own prompt, and drops whatever is not text from its first
    call. A stock `LlamaForCausalLM` would read hundreds of placeholders that it never saw in training, and agree with
    little. Here the last placeholders stand for the blank window that the twin was trained with, and the others are
    masked away, positions included: it reads exactly its own prompt and drafts what it drafts in our engine.
    """

    def __init__(self, target: Target, twin: IndependentDrafter) -> None:
        network: Any = twin.model.model
        super().__init__(network.config.text_config)
        self.text: Any = network.model.language_model
        self.model, self.lm_head = self.text, network.lm_head
        blank = twin.model.prepare(Request("What is ahead?", events=white_frames(network.config)))
        encoded: Any = twin.model.encode(blank)["video"]
        self.blank: Tensor = encoded.pooler_output[0]  # [T+P+1, h]
        self.banned = twin.banned
        self.placeholder = int(target.model.config.video_token_id)
        self.skipped = torch.zeros(0, dtype=torch.long)  # positions of the current prompt that do not exist for it
        self.eval()

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **unused: object,
    ) -> CausalLMOutputWithPast:
        """Logits at the last token. HF hands over the target's pixels and features too; they stay unread."""
        embeds = self.text.embed_tokens(input_ids)
        positions = (input_ids[0] == self.placeholder).nonzero()[:, 0]
        if len(positions):  # the first call of a request
            if len(positions) < len(self.blank):
                raise CrossdraftError(
                    f"The target's clip takes {len(positions)} tokens, fewer than the blind twin's blank window of "
                    f"{len(self.blank)}, so HF cannot show it to an assistant; leave hf-assisted out."
                )
            embeds[0, positions[-len(self.blank) :]] = self.blank
            self.skipped = positions[: -len(self.blank)]
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        mask = torch.ones(1, past + input_ids.shape[1], dtype=torch.long, device=input_ids.device)
        mask[:, self.skipped] = 0
        out = self.text(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1)[:, past:],
            past_key_values=past_key_values,
            use_cache=True,
        )
        logits = self.lm_head(out.last_hidden_state[:, -1:]) + self.banned
        return CausalLMOutputWithPast(logits=logits, past_key_values=out.past_key_values)
