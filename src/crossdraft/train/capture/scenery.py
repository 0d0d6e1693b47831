"""Scenes of the road world as a source: rendered as they are wanted, asked about in the words of the training."""

from dataclasses import asdict, dataclass

import numpy as np

from crossdraft import scenes
from crossdraft.errors import CrossdraftError
from crossdraft.train.capture.sources import Clip
from crossdraft.train.reference.batches import draw_questions, question_words, wear
from crossdraft.train.reference.clips import clip_seed, sample_times
from crossdraft.video.clip import DEFAULT_FRAMES

SPLITS = ("train", "validation")
MOST_PROMPTS = 512  # of one scene


@dataclass(frozen=True)
class SceneSource:
    """`clips` scenes of a split, from its `first` on, each with prompts of all kinds.

    Args:
        split: train or validation; the test split is held out.
        clips, first: which scenes.
        prompts: questions about each: kinds without repetition while there are enough, any wording of the training.
        seed: of the questions; those about a scene depend on it and on the scene alone.
        wear: drop or replace up to this share of a question's words, so that wordings nobody has heard are met; see
            `train.batches.wear`.
    """

    split: str = "train"
    clips: int = 1
    first: int = 0
    prompts: int = 8
    seed: int = 0
    wear: float = 0.0

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise CrossdraftError(
                f"There is no learning from the split '{self.split}'; capture {' or '.join(SPLITS)}, the test split is "
                "held out."
            )
        held = len(scenes.split_seeds(self.split))
        if self.clips < 1 or not 0 <= self.first <= held - self.clips:
            raise CrossdraftError(
                f"The {self.split} split has scenes 0 to {held - 1}, and {self.clips} from {self.first} on are not "
                "some of them; choose others."
            )
        if not 1 <= self.prompts <= MOST_PROMPTS:
            raise CrossdraftError(f"{self.prompts} prompts a clip are asked for; choose 1 to {MOST_PROMPTS}.")
        if not 0 <= self.wear < 1:
            raise CrossdraftError(f"The prompt noise (--wear) is {self.wear}; choose 0 (none) to less than 1.")

    @property
    def asked(self) -> dict[str, object]:
        settings = asdict(self)
        del settings["clips"]
        return {"kind": "scenes", **settings}

    @property
    def heavy(self) -> bool:
        return True

    def __len__(self) -> int:
        return self.clips

    @property
    def answers(self) -> int:
        return self.clips * self.prompts

    def locate(self, answer: int) -> tuple[int, int]:
        return divmod(answer, self.prompts)

    def read(self, index: int) -> Clip:
        clip = self.first + index
        rng = np.random.default_rng([self.seed, clip])
        questions = [qa.question for qa in draw_questions(self.split, clip, self.prompts, rng)]
        if self.wear:
            words = question_words()
            questions = [wear(question, self.wear, words, rng) for question in questions]
        scene = scenes.make_scene(clip_seed(self.split, clip))
        frames = scenes.render(scene, sample_times(DEFAULT_FRAMES), scenes.VIDEO_SIZE)
        return Clip(f"{self.split}-{clip:07d}", frames, tuple(questions))
