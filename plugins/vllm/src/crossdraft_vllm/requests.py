"""A request of vLLM's as one of ours: what the drafter reads is named in its extra arguments (`vllm_xargs` over HTTP).

| key                   | value                                                           |
|-----------------------|-----------------------------------------------------------------|
| `crossdraft_events`   | path of the event recording, relative to `media_root`           |
| `crossdraft_video`    | path of the clip, for a drafter that sees it: relative, too     |
| `crossdraft_question` | the question; without it, the text behind the last visual token |

A request without any of them is answered by vLLM alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from crossdraft.engine.prompt import known_ids, text_ids
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.integrations.questions import question_in
from crossdraft.video.inputs import placeholder_ids

EVENTS, VIDEO, QUESTION = KEYS = ("crossdraft_events", "crossdraft_video", "crossdraft_question")
MOST_LETTERS = 4096  # of a path


@dataclass(frozen=True)
class RequestReader:
    """Reads vLLM's requests as requests to the drafter.

    Args:
        config, tokenizer: the target's.
        media_root: folder that files must lie in; `None` = requests may name no files.
        context: length of the target's context in tokens; no question is longer.
    """

    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    media_root: Path | None
    context: int

    def read(
        self, prompt: Sequence[int] | None, extra: Mapping[str, Any] | None, max_tokens: int, namespace: str | None
    ) -> Request | None:
        """Return the request to the drafter; `None` if nothing is to be drafted.

        The request is greedy whatever vLLM's sampling: vLLM verifies drafted tokens as chosen, not as drawn.

        Args:
            prompt: tokens of vLLM's request.
            extra: extra arguments of vLLM's request.
            max_tokens: most tokens of the answer.
            namespace: as in `Request`.

        Raises:
            CrossdraftError: a value is no text, a file may not be read, or the question is missing or too long.
        """
        given = {key: extra[key] for key in KEYS if key in extra} if extra else {}
        if not given:
            return None
        for key, value in given.items():
            if not isinstance(value, str) or not value:
                raise CrossdraftError(f"{key} is {type(value).__name__}; give a string.")
        events, video = (self._file(key, given.get(key)) for key in (EVENTS, VIDEO))
        question = given.get(QUESTION) or question_in(self.config, self.tokenizer, prompt or ())
        request = Request(question, video, events, max_new_tokens=max_tokens, namespace=namespace)
        request.check_length(self.context)
        ids = text_ids(torch.tensor(prompt or (), dtype=torch.long), placeholder_ids(self.config))
        return replace(request, prompt_ids=known_ids(ids))

    def _file(self, key: str, given: str | None) -> str | None:
        """Return the path of a file below `media_root`, links followed."""
        if given is None:
            return None
        if self.media_root is None:
            raise CrossdraftError(f"{key} names a file, and no media_root was set; set it where vLLM is started.")
        root = self.media_root.resolve()
        try:
            path = (root / given).resolve() if len(given) <= MOST_LETTERS else root
        except (OSError, ValueError):
            path = root
        if not (path.is_relative_to(root) and path.is_file()):  # the error does not tell if it exists elsewhere
            raise CrossdraftError(f"{key} names no file in the media_root; give a path relative to that folder.")
        return str(path)
