"""`crossdraft scenes`: clips of the synthetic road world."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.cli.options import AsJson, Force
from crossdraft.cli.outputs import check_outputs
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft_lab.scenes import Scene

app = typer.Typer(
    help="Make clips of the synthetic road world, or look at one.", no_args_is_help=True, add_completion=False
)


@app.command()
def make(
    count: Annotated[int, typer.Option(min=1, help="How many clips.")] = 1,
    split: Annotated[
        str | None, typer.Option(help="train, validation or test; they share no scene. [default: test]")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="First scene's seed; the split's first by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the clips.")] = Path("demo"),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write clips: video (mp4), events (DSEC h5) on the same clock, and every question with its answer (json)."""
    from crossdraft.cli.reporting import report, track
    from crossdraft_lab.scenes import clip_files, make_scene, split_seeds, write_clip

    named, split = split is not None, split or "test"
    seeds = split_seeds(split)
    first = seeds.start if seed is None else seed
    if named and (first not in seeds or first + count - 1 not in seeds):
        raise CrossdraftError(
            f"Scenes {first} to {first + count - 1} are not all of the {split} split, whose seeds are {seeds.start} to "
            f"{seeds.stop - 1}."
        )
    if seed is None and count > len(seeds):
        raise CrossdraftError(f"The {split} split has {len(seeds)} scenes; ask for fewer than {count}.")
    chosen = range(first, first + count)
    if out.is_dir():  # otherwise it is created
        for number in chosen:
            made = clip_files(number, out)
            check_outputs(made.video, made.events, made.meta, force=force)
    clips = [(number, write_clip(make_scene(number), out)) for number in track(chosen, "Making clips", count)]
    rows = [
        {"seed": number, "video": str(clip.video), "events": str(clip.events), "meta": str(clip.meta)}
        for number, clip in clips
    ]
    lines = [f"{clip.video}  {clip.events}  {clip.meta}" for _, clip in clips]
    report({"clips": rows}, *lines, as_json=as_json)


@app.command()
def show(
    seed: Annotated[int, typer.Argument(min=0, help="The scene's seed.")],
    out: Annotated[
        Path | None, typer.Option(help="Picture to write, .png; by default scene.png, with --json none.")
    ] = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scene's attributes as JSON.")] = False,
) -> None:
    """Draw a scene on one page: eight video frames above five event frames."""
    from crossdraft.cli.reporting import report
    from crossdraft_lab.scenes import attributes, make_scene

    if out is None and not as_json:
        out = Path("scene.png")
    if out is not None and out.suffix.lower() != ".png":
        raise CrossdraftError(f"The picture {out} must be a .png file; choose a name that ends so.")
    check_outputs(out, force=force)
    scene = make_scene(seed)
    if out is not None:
        _draw(scene, out)
    picture = None if out is None else str(out)
    report({"seed": seed, "picture": picture, "attributes": attributes(scene)}, str(out), as_json=as_json)


def _draw(scene: "Scene", out: Path) -> None:
    import cv2

    from crossdraft.files import atomic_path
    from crossdraft_lab.scenes.clip import contact_sheet

    encoded, picture = cv2.imencode(".png", contact_sheet(scene)[..., ::-1])
    if not encoded:
        raise CrossdraftError(f"OpenCV cannot make the picture {out}; reinstall opencv-python-headless.")
    with atomic_path(out) as path:  # the file is written here, because OpenCV does not report a full disk
        path.write_bytes(picture.tobytes())
