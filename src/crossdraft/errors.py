"""The exceptions a user may meet."""

from collections.abc import Sequence


class CrossdraftError(Exception):
    """Bad input or a broken environment, told in one clear sentence: what, where, how to mend.

    The command line prints the sentence and leaves with status 2; a traceback means a bug of ours.
    """


class ContextLengthError(CrossdraftError):
    """A prompt, or the answer that is asked for after it, does not fit the model's context.

    Args:
        message: the sentence.
        context: tokens that the model's context holds.
        prompt: tokens of the prompt; `None` = it was not read.
        answer: tokens of the answer that do not fit after it; 0 = the prompt alone is too long.
    """

    def __init__(self, message: str, context: int = 0, prompt: int | None = None, answer: int = 0) -> None:
        super().__init__(message)
        self.context, self.prompt, self.answer = context, prompt, answer


class RequestError(CrossdraftError):
    """A request ended by an error that is not the user's to mend; its `__cause__` is that error, its text names both.

    The engine goes on: other requests, and later ones, are answered.
    """


class QueueFullError(CrossdraftError):
    """The engine's queue is full (`Options.max_queue`); ask again later."""


class BatchError(CrossdraftError):
    """Some requests of a batch failed, or all; the others were answered.

    Args:
        results: what became of each request, in order: an `Answer` or its exception.
    """

    def __init__(self, results: Sequence[object]) -> None:
        self.results = tuple(results)
        failed = [(i, error) for i, error in enumerate(self.results) if isinstance(error, BaseException)]
        index, first = failed[0]
        kept = "errors and answers" if len(failed) < len(self.results) else "errors of all"
        super().__init__(
            f"{len(failed)} of {len(self.results)} requests failed, the first of them request {index + 1}: {first} "
            f"(The {kept} are in this error's `results`.)"
        )
