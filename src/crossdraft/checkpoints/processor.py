"""A checkpoint's own Hugging Face processor, for classes that crossdraft's table of families does not know."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import transformers
from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor, AutoTokenizer, ProcessorMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from crossdraft.checkpoints.files import read_config
from crossdraft.checkpoints.locate import repair_hint
from crossdraft.checkpoints.weights import LIBRARY_ERRORS, first_line, quiet
from crossdraft.errors import CrossdraftError

LOCAL = {"local_files_only": True, "trust_remote_code": False}
PARTS: dict[str, Any] = {"tokenizer": AutoTokenizer, "image_processor": AutoImageProcessor}
TORCHVISION, INSTALL = "torchvision", "install the torchvision of your PyTorch's build"
SETTINGS = "processor_config.json", "preprocessor_config.json"


class MissingPackageError(CrossdraftError):
    """A processor needs a package that is not installed."""


def load_processor(folder: Path) -> Any:
    """Load a checkpoint's processor. Where its video processor lacks torchvision, it is left out: see `no_clips`.

    Raises:
        CrossdraftError: the folder has no processor, one of another's code, one that cannot be loaded, or no chat
            template.
    """
    if not any((folder / name).is_file() for name in SETTINGS):
        raise CrossdraftError(
            f"The checkpoint {folder} lacks its processor ({' or '.join(SETTINGS)}), which writes the prompts of a "
            f"class that is not in the table of families; {repair_hint(folder)}."
        )
    try:
        with quiet():
            found = _loaded(folder)
    except ImportError as error:
        lacks = f"a package: {first_line(error)}; install it"
        if TORCHVISION in str(error).lower():
            lacks = f"the package torchvision; {INSTALL}"
        raise MissingPackageError(f"the processor of {folder} needs {lacks}.") from error
    except LIBRARY_ERRORS as error:
        raise CrossdraftError(
            f"The processor of {folder} cannot be loaded: {first_line(error)}; {repair_hint(folder)}."
        ) from error
    if not isinstance(found, ProcessorMixin):
        raise CrossdraftError(
            f"{folder} names no processor class of transformers ({' or '.join(SETTINGS)}); {repair_hint(folder)}."
        )
    if not getattr(found, "chat_template", None):
        template = getattr(getattr(found, "tokenizer", None), "chat_template", None)
        if not template:
            raise CrossdraftError(
                f"The processor of {folder} has no chat template (chat_template.jinja), so that no prompt can be "
                f"written; {repair_hint(folder)}."
            )
        found.chat_template = template
    return found


def no_clips(processor: Any) -> str:
    """The reason why a processor reads no clips here; empty if it does."""
    found = getattr(processor, "video_processor", None)
    if isinstance(found, transformers.BaseImageProcessor):
        return ""
    if found is None:
        return f"the {type(processor).__name__} of its class reads none; take another model."
    return f"its video processor needs the package torchvision; {INSTALL}."


def _loaded(folder: Path) -> Any:
    try:
        return AutoProcessor.from_pretrained(str(folder), **LOCAL)
    except ImportError as error:
        kind = _class_of(folder)
        if kind is None or TORCHVISION not in str(error).lower() or "video_processor" not in kind.get_attributes():
            raise
    settings, _ = kind.get_processor_dict(str(folder), local_files_only=True)
    unread = SimpleNamespace(model_input_names=[], **(settings.get("video_processor") or {}))

    class WithoutClips(kind):
        """The processor with its video processor's settings in place of the video processor."""

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            check = super().check_argument_for_proper_class
            return None if argument is unread else check(argument_name, argument)

        def __repr__(self) -> str:  # transformers' own writes all parts as JSON
            return kind.__name__

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
