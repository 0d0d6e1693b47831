"""The shape of an EventGPT: a CLIP vision encoder, a Llama, and how event frames become tokens."""

from typing import Any, ClassVar

from transformers import CLIPVisionConfig, LlamaConfig
from transformers.configuration_utils import PreTrainedConfig

from crossdraft.errors import CrossdraftError


class EventGPTConfig(PreTrainedConfig):
    """Configuration of `EventGPTForConditionalGeneration`; the defaults are the released 7B shape.

    Attributes:
        vision_config: the vision encoder, a `CLIPVisionConfig`; may be given as a dict of its fields.
        text_config: the language model, a `LlamaConfig`; may be given as a dict of its fields.
        event_token_id: the placeholder that event features replace.
        num_event_frames: T, frames of one event window.
        add_start_end: whether the model was trained with `<ev_start>` and `<ev_end>` around the features
            (`mm_use_im_start_end` of the official configuration).
        projector_hidden_act: activation between the projector's two layers.

    Raises:
        CrossdraftError: the placeholder is outside the vocabulary, there is no frame, or a part is of another kind.
    """

    model_type = "eventgpt"
    # transformers 5.23 derives this from another attribute, which 5.17 does not know; a plain dict suits both.
    sub_configs: ClassVar[dict[str, Any]] = {  # pyright: ignore[reportIncompatibleMethodOverride]
        "vision_config": CLIPVisionConfig,
        "text_config": LlamaConfig,
    }
    # `generate` finds the placeholders of pre-encoded features by this name.
    attribute_map: ClassVar[dict[str, str]] = {"video_token_id": "event_token_id"}

    vision_config: Any = None
    text_config: Any = None
    event_token_id: int = 32000
    num_event_frames: int = 5
    add_start_end: bool = False
    projector_hidden_act: str = "gelu"
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        if self.vision_config is None:
            self.vision_config = CLIPVisionConfig(
                hidden_size=1024,
                intermediate_size=4096,
                num_hidden_layers=24,
                num_attention_heads=16,
                image_size=336,
                patch_size=14,
                projection_dim=768,
            )
        elif isinstance(self.vision_config, dict):
            self.vision_config = CLIPVisionConfig(**self.vision_config)
        if self.text_config is None:
            self.text_config = LlamaConfig(vocab_size=32001)
        elif isinstance(self.text_config, dict):
            self.text_config = LlamaConfig(**self.text_config)
        self._check()
        super().__post_init__(**kwargs)

    def _check(self) -> None:
        """Check the types: the values come from files."""
        for name, kind in self.sub_configs.items():
            if not isinstance(getattr(self, name), kind):
                raise CrossdraftError(f"{name} of an EventGPT must hold the fields of a {kind.__name__}.")
        vision, vocabulary = self.vision_config, self.text_config.vocab_size
        sides = (vision.patch_size, vision.image_size)
        if not all(isinstance(side, int) for side in sides) or not 1 <= sides[0] <= sides[1]:
            raise CrossdraftError(
                f"An EventGPT reads square images of whole patches, not {vision.image_size} pixels in patches of "
                f"{vision.patch_size}."
            )
        if not isinstance(self.event_token_id, int) or not 0 <= self.event_token_id < vocabulary:
            raise CrossdraftError(
                f"The event placeholder {self.event_token_id!r} is outside the vocabulary of {vocabulary} ids; "
                "give event_token_id one of them."
            )
        if not isinstance(self.num_event_frames, int) or self.num_event_frames < 1:
            raise CrossdraftError(f"An event window needs at least one frame, not {self.num_event_frames!r}.")

    @property
    def event_seq_length(self) -> int:
        """Tokens of one event window: T temporal ones, then one per patch and the class token."""
        grid = self.vision_config.image_size // self.vision_config.patch_size
        return self.num_event_frames + grid * grid + 1
