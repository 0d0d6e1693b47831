"""What docs say of limits, defaults and sizes of models, written from the code that has them; see `docs/figures.py`."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from crossdraft.drafters.settings import PyramidSettings
from crossdraft.engine.fast import heap
from crossdraft.engine.fast.quantized_linear import GROUP, bytes_saved
from crossdraft.engine.runner.parallel import FORK_BYTES
from crossdraft.engine.workers.encode import HALF_TOLERANCE
from crossdraft.events.hdf5_write import MAX_SPAN_US
from crossdraft.events.limits import SMALL_BYTES, EventLimits
from crossdraft.models.eventgpt.processing import OFFICIAL_WINDOW_US, WINDOW_EVENTS
from crossdraft.serve import live
from crossdraft.serve.decode import UNWANTED_S
from crossdraft.serve.edge import SILENT_S
from crossdraft.streams.messages import MESSAGE_BYTES
from crossdraft.streams.windows import Windowing
from crossdraft.video.limits import VideoLimits
from crossdraft_lab.bench import events as event_bench
from crossdraft_lab.bench.align_features import THRESHOLDS
from crossdraft_lab.bench.growth import LONG_S
from crossdraft_lab.bench.resources import MOST_GROWTH
from crossdraft_lab.bench.scale_checkpoint import DTYPE, planned
from crossdraft_lab.bench.scale_layouts import layout_of
from crossdraft_lab.bench.scale_models import FRAMES, SPARE
from crossdraft_lab.bench.serving.load import WARM
from crossdraft_lab.bench.serving.plan import FUZZED_CACHE_BYTES
from crossdraft_lab.bench.significance import ALPHA
from crossdraft_lab.bench.statistics import DRAWS
from crossdraft_lab.bench.throughput_report import FLOOR
from crossdraft_lab.cli.align import CLIPS, PROMPTS
from crossdraft_lab.compression.fastv import FastVSettings
from crossdraft_lab.compression.visionzip import VisionZipSettings
from crossdraft_lab.drafters.online import ROOM
from crossdraft_lab.drafters.settings import GuidedSettings
from crossdraft_lab.rules.classifier import Classifier
from crossdraft_lab.train.align.tuned import RECIPE, TuneRecipe
from crossdraft_lab.train.core.recipe import read_section
from crossdraft_lab.train.heads.joint import ADAPTED
from crossdraft_lab.train.heads.recipe import load_head_recipe
from crossdraft_vllm.settings import HostSettings
from tests.bench.test_significance import JITTER, LEAST_FOUND, MOST_FALSE, SCENES, SLOWDOWN
from tests.events import test_simulate as v2e
from tools.figures import ROOT, Tie

JSON = Mapping[str, Any]
MIB, GIB = 1 << 20, 1 << 30
MILLION = 1_000_000
TARGET = ROOT / "src/crossdraft/reference/target"
CONTEXT = 2200  # tokens of a prompt and its answer
TEXT_TOKENS = 66  # of a question and its answer
CLIP_TOKENS = 880  # of a clip with four answers, as EventGPT reads it
LEARNING_BYTES = 20  # of a number that learns, in float32: it, its gradient, two moments, its average
SPEED = 66e12  # operations a second: two fifths of an RTX 4090's bf16, assumed
TEXT_NAMES = ("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")  # of EventGPT's language model
ON_DISK = {
    "video-llava-7b": "`LanguageBind/Video-LLaVA-7B-hf`", "video-llava-0.5b": "the same",
    "video-llava-small": "the same", "video-llava-tiny": "the same",
    "eventgpt-7b": "EventGPT-7B as released", "eventgpt-small": "the same", "eventgpt-tiny": "the same",
}  # fmt: skip
LOADED = {"video-llava-7b": ("bfloat16", "int8", "int4"), "video-llava-0.5b": ("bfloat16", "float32")}
QUANTIZED = {
    "int8": "one for each row of a weight | 8",
    "int4": f"scale and zero for each group of {GROUP} | {4 + 32 / GROUP:g}",
}


def size(nbytes: float) -> str:
    """Bytes as pages have them.

    >>> size(14.73e9), size(2.15e9), size(0.524e6), size(1.52e6)
    ('14.7 GB', '2.15 GB', '0.52 MB', '1.5 MB')
    """
    unit, name = (1e9, "GB") if nbytes >= 1e8 else (1e6, "MB")
    value = nbytes / unit
    return f"{value:.{1 if value >= 10 or (name == 'MB' and value >= 1) else 2}f} {name}"


def count(parameters: float) -> str:
    """Parameters as pages have them.

    >>> count(7.366e9), count(0.76e6)
    ('7.37 B', '0.8 M')
    """
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e8 else f"{parameters / 1e6:.1f} M"


def weights(name: str, dtype: str = "bfloat16") -> float:
    """Bytes of a shape's weights in a dtype, or quantised as Options say."""
    layout = layout_of(name)
    nbytes = planned(layout).bytes
    if dtype in QUANTIZED:
        with torch.device("meta"):
            model: Any = AutoModelForImageTextToText.from_config(layout.config, dtype=DTYPE)
        return nbytes - bytes_saved(model, dtype)
    return nbytes * (2 if dtype == "float32" else 1)


def shapes() -> Iterator[str]:
    """The checkpoints that can be written, what they take when they are loaded, and in fewer bits."""
    for name, layout in ON_DISK.items():
        plan = planned(layout_of(name))
        files = f"{len(plan.files)} files"
        cut, kept = f", cut into {files}" if name.endswith("tiny") else "", f" in {files}" if "7b" in name else ""
        yield f"| `{name}` | {layout}{cut} | {count(plan.bytes / DTYPE.itemsize)} | {size(plan.bytes)}{kept} |"
    for name, dtypes in LOADED.items():
        for dtype in dtypes:
            how = f"`--quantize {dtype}`" if dtype in QUANTIZED else dtype
            yield f"| `{name}`, {how} | {weights(name, dtype) / 1e9:.2f} GB |"
    for dtype, scales in QUANTIZED.items():
        yield f"| `{dtype}` | {scales} | {weights('video-llava-7b', dtype) / 1e9:.1f} GB |"
    yield f"in half precision up to {HALF_TOLERANCE:.0%} of the largest feature is".replace("%", " %")


def kept_token(name: str) -> int:
    """Bytes that a language model keeps of a token: keys and values of all layers."""
    return token_numbers(vars(layout_of(name).config.text_config)) * DTYPE.itemsize


def your_own_models() -> Iterator[str]:
    """Arithmetic of the real pair's memory."""
    yield f"with a margin of {SPARE - 1:.0%}".replace("%", " %")
    for title, name in (("Video-LLaVA-7B", "video-llava-7b"), ("EventGPT-7B", "eventgpt-7b")):
        nbytes = weights(name)
        each = (nbytes, SPARE * nbytes, 2 * nbytes, 2 * SPARE * nbytes)
        yield f"| {title} | {count(nbytes / DTYPE.itemsize)} | {' | '.join(f'{one / 1e9:.1f} GB' for one in each)} |"
    token = kept_token("video-llava-7b")
    yield f"{size(token)} a token and model in bf16, so {CONTEXT * token / 1e9:.1f} GB for the {CONTEXT:,} tokens"
    larger = SPARE * weights("video-llava-7b") / 1e9
    plain, int8, int4 = (
        SPARE * sum(weights(name, dtype) for name in ("video-llava-7b", "eventgpt-7b")) / 1e9
        for dtype in ("bfloat16", "int8", "int4")
    )
    yield f"| two GPUs, {larger:.1f} GB free on each |"
    yield f"| one GPU, {plain:.1f} GB free |"
    yield f"| one GPU, {larger:.1f} GB free |"
    yield f"{plain:.1f} GB of memory free for both, {int8:.1f} GB with `--quantize int8`, {int4:.1f} GB with `int4`"
    yield f"made for windows of {OFFICIAL_WINDOW_US / 1e3:g} ms"
    yield f"as its checkpoint says ({FRAMES})"


def align_captured() -> Iterator[str]:
    """Arithmetic of capturing the real pair's answers on one GPU, and of what is kept of them."""
    token = kept_token("video-llava-7b")
    for dtype, shown, batch in (("int4", f" (groups of {GROUP})", 8), ("bfloat16", "", 4)):
        held = weights("video-llava-7b", dtype)
        whole = (held + batch * CONTEXT * token) / 1e9
        yield f"{held / 1e9:.1f} GB of weights{shown}, {size(token)} a token: {whole:.0f} GB with `--batch {batch}`"
    width = layout_of("video-llava-7b").config.text_config.hidden_size
    state, answers = width * DTYPE.itemsize, CLIPS * PROMPTS
    yield (
        f"{state / 1e3:.0f} kB a token of text kept ({width} × {DTYPE.itemsize} bytes): "
        f"{size(state * TEXT_TOKENS * answers)} for {answers:,} answers of {TEXT_TOKENS} tokens, question included; "
        f"{weights('eventgpt-7b') / 1e9:.1f} GB for the drafter"
    )


def align_tuned() -> Iterator[str]:
    """Arithmetic of tuning the real pair's drafter: what is held, and the products of all steps."""
    recipe = read_section(TuneRecipe, RECIPE, (), ("reference", False))
    tensors, text = eventgpt()
    learns = low_rank(text, recipe.rank)
    for dtype in ("int4", "bfloat16"):
        base = weights("eventgpt-7b", dtype) / 1e9
        yield f"{base:.1f} GB of weights, {LEARNING_BYTES * learns / 1e9:.1f} GB of additions with their optimiser"
    # Forwards and back, two operations a weight each; of a frozen weight no gradient is made.
    operations = 4 * sum(one.numel() for name, one in text.items() if name.endswith("proj.weight"))
    steps, answers = recipe.optim.steps, recipe.optim.clips
    hours = operations * steps * answers / PROMPTS * CLIP_TOKENS / SPEED / 3600
    yield f"tune, {steps:,} steps of {answers} answers | | {hours:.1f} hours at {SPEED / 1e12:.0f} TFLOP/s"
    held, learned = (4 * sum(one.numel() for one in some.values()) / 1e9 for some in (tensors, text))
    yield (
        f"{held:.0f} GB of weights in float32, {learned:.0f} for gradients, {2 * learned:.0f} for the optimiser, "
        f"{learned:.0f} for averaged weights: {held + 4 * learned:.0f} GB"
    )


def eventgpt() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """All weights of EventGPT-7B, and those of its language model, by name, without memory."""
    tensors = dict(one for file in planned(layout_of("eventgpt-7b")).files.values() for one in file.items())
    return tensors, {name: tensor for name, tensor in tensors.items() if name.startswith(TEXT_NAMES)}


def low_rank(tensors: Mapping[str, torch.Tensor], rank: int) -> int:
    """Numbers of LoRA on the attention among these weights."""
    adapted = [tensor.shape for name, tensor in tensors.items() if name.split(".")[-2] in ADAPTED]
    return sum(rank * sum(shape) for shape in adapted)


def heads() -> Iterator[str]:
    """Sizes at 7B and of the reference target, thresholds of cosines, and what else the page says of settings."""
    rank = read_section(TuneRecipe, RECIPE, (), ("reference", False)).rank
    learns = low_rank(eventgpt()[1], rank)
    yield f"`l6` has {learns / MILLION:.1f} M weights of rank {rank} while it learns (computed)"
    theirs, ours = (layout_of(name).config.text_config.vocab_size for name in ("video-llava-7b", "eventgpt-7b"))
    yield f"the map of the former alone, {theirs:,} × {ours:,}, is {theirs * ours / 1e9:.1f} G"
    yield "the share above {:.2f} and {:.2f}".format(*THRESHOLDS)
    loss = ", ".join(f"{name}: {weight}" for name, weight in load_head_recipe("l4").loss.items())
    yield f"takes others than the default, `{{{loss}}}`"
    high = THRESHOLDS[-1]
    yield f"from the first on with a cosine above {high:.2f}"
    yield f"| τ | cosine | > {high:.2f} | in a row |"
    with torch.device("meta"):
        target: Any = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(TARGET))
    read = sum(one.numel() for name, one in target.named_parameters() if "image_tower" not in name)
    yield f"The target runs {read / MILLION:.1f} M, all but its image encoder"


def token_numbers(text: JSON) -> int:
    """Numbers that a decoder keeps of a token: keys and values of all layers."""
    width = text["num_key_value_heads"] * (text["head_dim"] or text["hidden_size"] // text["num_attention_heads"])
    return 2 * text["num_hidden_layers"] * width


def formats(shipped: JSON) -> Iterator[str]:
    """Clocks, windows, limits, and what the bench of recordings reads; `shipped` is the event drafter's processor."""
    yield f"they hold at most {MAX_SPAN_US / 60e6:.1f} minutes"
    yield f"A 16-bit clock that wrapped (every {(1 << 16) / 1e3:.1f} ms)"
    yield f"nothing happens for longer than {(1 << 24) / 1e6:.1f} s"  # EVT3's clock has 24 bits
    yield (
        f"({v2e.WIDTH}×{v2e.HEIGHT}, {(v2e.FRAMES - 1) / v2e.FPS:g} s) the event counts are within {v2e.COUNTS:.0%} of "
        f"v2e's for every preset, and the noise on a still grey scene within {v2e.COUNTS:.0%};".replace("%", " %")
    )
    yield f"Spreads of counts from pixel to pixel agree within {v2e.SPREADS:.0%}.".replace("%", " %")
    yield (
        f"`window_us` ({OFFICIAL_WINDOW_US / 1e3:g} ms for the released EventGPT, {shipped['window_us'] / 1e6:g} s for "
        f"the shipped reference drafter) and `window_events`, the most events of it ({WINDOW_EVENTS // MILLION} million"
    )
    yield from event_limits(EventLimits())
    video = VideoLimits()
    yield f"in `VideoLimits`: {video.pixels / MILLION:.1f} million pixels a frame, {video.frames:,} frames"
    yield f"and {video.held / 1e8:.1f} · 10⁸ pixels ({3 * video.held / 1e6:.0f} MB) of those"
    window, rate = event_bench.WINDOW_US / 1e3, event_bench.RATE_MEV_S
    yield f"of a {window:g} ms window, a slice of 1 s out of a file at the rate of a busy DSEC drive ({rate} million"
    seconds, width, height = event_bench.REAL_S, event_bench.WIDTH, event_bench.HEIGHT
    yield f"({width}×{height}, {seconds:g} s, {seconds * event_bench.REAL_MEV_S:.1f} million events, written by us"


def event_limits(limits: EventLimits) -> Iterator[str]:
    """The table of limits of a recording."""
    yield f"| `events` | {limits.events // MILLION} million | held"
    yield f"| `scanned`, `lines` | {limits.scanned // 10**9} billion, {limits.lines // MILLION} million |"
    yield f"| `ratio` | {limits.ratio:g} | unpacked size over stored size, beyond {SMALL_BYTES // MIB} MiB |"
    yield f"| `block_bytes` | {limits.block_bytes // MIB} MiB |"
    yield f"| `held_bytes` | {limits.held_bytes // MIB} MiB |"
    yield f"| `pixels` | {limits.pixels / MILLION:.1f} million |"
    yield f"| `seconds` | {limits.seconds:,.0f} |"
    yield f"| `worker_bytes`, `worker_seconds` | {limits.worker_bytes // GIB} GiB, {limits.worker_seconds} |"


def drafters() -> Iterator[str]:
    """Defaults of settings that stand in the prose."""
    guided = GuidedSettings()
    yield f"`threshold` ({PyramidSettings().threshold:g} nats, Jensen-Shannon)"
    yield f"the share `keep` ({guided.keep:g}), first the tokens that draw `mass` ({guided.mass:g}) of"
    yield f"(`keep=64`, at most {ROOM // MIB} MiB)"


def vllm() -> Iterator[str]:
    """Defaults of the hosted drafter."""
    settings = HostSettings(drafter="event")
    yield f"| `wait_ms` | {settings.wait_ms:g} |"
    yield f"| `requests` | {settings.requests} |"
    yield f"| `drafter_timeout_s` | {settings.drafter_timeout_s:g} |"


def many_requests(target: JSON) -> Iterator[str]:
    """Bounds of both benches, and what a round reads of keys and values; `target` is the reference target's shape."""
    nbytes = 16 * 416 * token_numbers(target["text_config"]) * torch.float32.itemsize
    yield f"({nbytes / 1e6:.0f} MB for 16 rows of 416 tokens)"
    yield f"drafting must never cost more than {1 - FLOOR:.0%} against it".replace("%", " %")
    yield f"(max − min) / median is at most {MOST_GROWTH:.0%}".replace("%", " %")
    yield f"when a process has grown by {heap.GROWTH // MIB} MiB"


def serve() -> Iterator[str]:
    """What becomes of a job whose client has gone, and the server that mutants are sent to."""
    yield f"the process is ended after {UNWANTED_S:g} s"
    yield f"hold {FUZZED_CACHE_BYTES // MIB} MiB each"
    yield f"judged after the first {WARM:.0%} of them".replace("%", " %")


def streams() -> Iterator[str]:
    """The grid of windows, worked out for an example, and limits of a pushed stream."""
    windows = Windowing(0.2, 1.0, 8)
    due = [f"{windows.begins(number) + windows.length_s:g}" for number in range(4)]
    wished = [f"{windows.length_s + number * windows.every_s:g}" for number in range(4)]
    yield (
        f"with {windows.frames} frames in {windows.length_s:g} s and `--every 200ms` at {', '.join(due)} … s instead "
        f"of {', '.join(wished)} … s"
    )
    yield f"of at most {MESSAGE_BYTES // MIB} MiB"
    yield f"rising, at most {live.MOST_GAP_S:g} s apart"
    yield (
        f"at most {live.WAITING_FRAMES} of them, {live.WAITING_MESSAGES:,} messages and "
        f"{live.WAITING_BYTES // MIB} MiB waiting"
    )
    yield f"who pushes nothing for {SILENT_S:g} s"


def compression() -> Iterator[str]:
    """Defaults of compressions."""
    zipped = VisionZipSettings()
    yield f"the share of them that stays ({FastVSettings().keep:g})"
    yield f"the share of a frame's tokens that is left ({zipped.keep:g})"
    yield (
        f"the share of those that others are merged into ({zipped.contextual:g}: {64 * zipped.contextual:g} of 64, as "
        "the authors choose)"
    )


def significance() -> Iterator[str]:
    """When a difference counts, and what the tests plant."""
    yield f"({DRAWS:,} bootstrap samples, 95 %)"
    yield f"the corrected p is below {ALPHA:g} and the interval excludes 1"
    yield (
        f"a slowdown of {SLOWDOWN:.0%} among {SCENES} scenes with {JITTER:.1%} of jitter and stalls is found in at "
        f"least {LEAST_FOUND} of 100 samples, and none where there is none in at least {100 - MOST_FALSE} of 100"
    ).replace("%", " %")


def growth() -> Iterator[str]:
    """Which runs are not repeated."""
    yield f"of a run of more than {LONG_S:g} s there is one"


def how_it_works() -> Iterator[str]:
    """What drafting ahead may hold."""
    yield f"ahead holds take {FORK_BYTES // GIB} GiB at most"


def edge(event: JSON) -> Iterator[str]:
    """What features of the events would take on the wire; `event` is the event drafter's shape."""
    yield f"Copies take at most {FORK_BYTES // GIB} GiB of keys and values"
    tokens, width = features(event)
    yield f"would take {2 * tokens * width:,} bytes ({tokens} tokens of {width} numbers in 16 bits; computed)"
    tokens, width = features(layout_of("eventgpt-7b").config.to_dict())
    nbytes = 2 * tokens * width
    yield (
        f"of EventGPT-7B's {tokens} tokens of {width:,} it would be {nbytes / 1e6:.1f} MB (computed), "
        f"{8 * nbytes / 100e6:.2f} s at 100 Mbit/s"
    )


def features(model: JSON) -> tuple[int, int]:
    """Tokens that an EventGPT makes of its frames, one a frame and one a patch, and the numbers of each."""
    vision = model["vision_config"]
    patches = (vision["image_size"] // vision["patch_size"]) ** 2
    return model["num_event_frames"] + patches + 1, model["text_config"]["hidden_size"]


def judge() -> Iterator[str]:
    """The threshold that its figures are of."""
    yield f"; at a threshold of {Classifier().threshold:g}"


CARDS = "src/crossdraft/reference"
TIES = (
    Tie("docs/align_your_own_pair.md", (), align_captured),
    Tie("docs/align_your_own_pair.md", (), align_tuned),
    Tie("docs/drafters.md", (), drafters),
    Tie("docs/heads.md", (), heads),
    Tie("docs/formats.md", ("src/crossdraft/reference/event/processor_config.json",), formats),
    Tie("docs/compression.md", (), compression),
    Tie("docs/data.md", (), significance),
    Tie("docs/edge.md", (f"{CARDS}/event/config.json",), edge),
    Tie("docs/growth.md", (), growth),
    Tie("docs/how_it_works.md", (), how_it_works),
    Tie("docs/rules.md", (), judge),
    Tie("docs/drafters.md", (), drafters),
    Tie("docs/formats.md", (f"{CARDS}/event/processor_config.json",), formats),
    Tie("docs/large_models.md", (), shapes),
    Tie("docs/many_requests.md", (f"{CARDS}/target/config.json",), many_requests),
    Tie("docs/serve.md", (), serve),
    Tie("docs/streams.md", (), streams),
    Tie("docs/vllm.md", (), vllm),
    Tie("docs/your_own_models.md", (), your_own_models),
)
