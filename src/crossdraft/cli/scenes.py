"""`crossdraft scenes`: clips of the synthetic road world."""

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Make clips of the synthetic road world, or look at one.", no_args_is_help=True, add_completion=False
)


@app.callback()
def scenes() -> None:
    """Make clips of the synthetic road world, or look at one."""


@app.command()
def make(
    count: Annotated[int, typer.Option(min=1, help="How many clips.")] = 1,
    split: Annotated[
        str | None, typer.Option(help="train, validation or test; they share no scene. [default: test]")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="First scene's seed; the split's first by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the clips.")] = Path("demo"),
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Write clips: video (mp4), events (DSEC h5) on the same clock, and every question with its answer (json)."""
    from rich.console import Console
    from rich.progress import track

    from crossdraft.errors import CrossdraftError
    from crossdraft.scenes import make_scene, split_seeds, write_clip

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
    progress = track(chosen, "Making clips", console=Console(stderr=True), transient=True)
    clips = [(number, write_clip(make_scene(number), out)) for number in progress]
    if as_json:
        rows = [
            {"seed": number, "video": str(clip.video), "events": str(clip.events), "meta": str(clip.meta)}
            for number, clip in clips
        ]
        print(json.dumps({"clips": rows}, indent=1))
        return
    for _, clip in clips:
        print(f"{clip.video}  {clip.events}  {clip.meta}")


@app.command()
def show(
    seed: Annotated[int, typer.Argument(min=0, help="The scene's seed.")],
    out: Annotated[Path, typer.Option(help="Picture to write, .png.")] = Path("scene.png"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the scene's attributes as JSON.")] = False,
) -> None:
    """Draw a scene on one page: eight video frames above five event frames."""
    import cv2

    from crossdraft.errors import CrossdraftError
    from crossdraft.files import atomic_path
    from crossdraft.scenes import attributes, make_scene
    from crossdraft.scenes.sheet import contact_sheet

    if out.suffix.lower() != ".png":
        raise CrossdraftError(f"The picture {out} must be a .png file; choose a name that ends so.")
    scene = make_scene(seed)
    encoded, picture = cv2.imencode(".png", contact_sheet(scene)[..., ::-1])
    if not encoded:
        raise CrossdraftError(f"OpenCV cannot make the picture {out}; reinstall opencv-python-headless.")
    with atomic_path(out) as path:  # writing is ours, because OpenCV's says nothing of a full disk
        path.write_bytes(picture.tobytes())
    if as_json:
        print(json.dumps({"seed": seed, "picture": str(out), "attributes": attributes(scene)}, indent=1))
    else:
        print(out)
