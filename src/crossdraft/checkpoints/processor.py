"""A checkpoint's own Hugging Face processor, for classes that crossdraft's table of families does not know."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import transformers
from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor, AutoTokenizer, ProcessorMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from crossdraft.checkpoints.files import read_config
from crossdraft.checkpoints.weights import LIBRARY_ERRORS, first_line, quiet
from crossdraft.errors import CrossdraftError

LOCAL = {"local_files_only": True, "trust_remote_code": False}
PARTS: dict[str, Any] = {"tokenizer": AutoTokenizer, "image_processor": AutoImageProcessor}


class MissingPackageError(CrossdraftError):
    """A processor needs a package that is not installed."""


def load_processor(folder: Path) -> Any:
    """Load a checkpoint's processor. Where its video processor lacks torchvision, it is left out: see `reads_clips`.

    Raises:
        CrossdraftError: the folder has no processor, one of another's code, one that cannot be loaded, or no chat
            template.
    """
    try:
        with quiet():
            found = _loaded(folder)
    except ImportError as error:
        raise MissingPackageError(
            f"the processor of {folder} needs a package that is not here ({first_line(error)}); install it."
        ) from error
    except LIBRARY_ERRORS as error:
        raise CrossdraftError(
            f"The processor of {folder} cannot be loaded: {first_line(error)}; take its files from the checkpoint "
            "again."
        ) from error
    if not isinstance(found, ProcessorMixin):
        raise CrossdraftError(
            f"{folder} has no processor (processor_config.json or preprocessor_config.json), which writes the prompts "
            "of a class that is not in the table of families; take the files from the checkpoint again."
        )
    if not getattr(found, "chat_template", None):
        template = getattr(getattr(found, "tokenizer", None), "chat_template", None)
        if not template:
            raise CrossdraftError(
                f"The processor of {folder} has no chat template (chat_template.jinja), so that no prompt can be "
                "written; take the file from the checkpoint again."
            )
        found.chat_template = template
    return found


def reads_clips(processor: Any) -> bool:
    """True if a processor has a video processor that runs here."""
    return isinstance(getattr(processor, "video_processor", None), transformers.BaseImageProcessor)


def _loaded(folder: Path) -> Any:
    try:
        return AutoProcessor.from_pretrained(str(folder), **LOCAL)
    except ImportError as error:
        kind = _class_of(folder)
        if kind is None or "torchvision" not in str(error) or "video_processor" not in kind.get_attributes():
            raise
    settings, _ = kind.get_processor_dict(str(folder), local_files_only=True)
    unread = SimpleNamespace(model_input_names=[], **(settings.get("video_processor") or {}))

    class WithoutClips(kind):
        """The processor with its video processor's settings in place of the video processor."""

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            check = super().check_argument_for_proper_class
            return None if argument is unread else check(argument_name, argument)

    WithoutClips.__name__ = kind.__name__
    parts = [
        unread if name == "video_processor" else PARTS.get(name, AutoFeatureExtractor).from_pretrained(folder, **LOCAL)
        for name in kind.get_attributes()
    ]
    return WithoutClips.from_args_and_dict(parts, settings)


def _class_of(folder: Path) -> Any:
    """The processor's class, by its files or by the model's type."""
    settings, _ = ProcessorMixin.get_processor_dict(str(folder), local_files_only=True)
    kind = read_config(folder).get("model_type")
    name = settings.get("processor_class") or PROCESSOR_MAPPING_NAMES.get(str(kind))
    return getattr(transformers, name, None) if name else None
