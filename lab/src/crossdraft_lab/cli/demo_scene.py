"""The clip of `crossdraft demo` where the laboratory is installed: a held-out scene."""

from pathlib import Path

from crossdraft.cli.demo import DemoClip, DemoQuestion, DemoSource
from crossdraft.errors import CrossdraftError

KINDS = ("describe", "lead motion", "watch for", "layout")


def make(out: Path, seed: int) -> DemoClip:
    """Make a clip of one of the test split's scenes, with questions in wordings that no training saw.

    Raises:
        CrossdraftError: the scene does not exist, or the folder cannot be written to.
    """
    from crossdraft_lab.scenes import ask, make_scene, score, split_seeds, write_clip

    test = split_seeds("test")
    if seed >= len(test):
        raise CrossdraftError(f"There are {len(test)} test scenes; give a --seed below that.")
    scene = make_scene(test[seed])
    clip = write_clip(scene, out)
    asked = [ask(scene, kind, 0, held_out=True) for kind in KINDS]
    questions = [DemoQuestion(qa.kind, qa.question, lambda text, qa=qa: score(qa.facts, text)) for qa in asked]
    return DemoClip(clip.video, clip.events, questions)


SCENE = DemoSource("scene", make)
