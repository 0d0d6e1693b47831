"""`crossdraft batch`: the lines of an OpenAI batch file, answered into another file."""

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from crossdraft.cli.options import AsJson
from crossdraft.cli.outputs import check_outputs
from crossdraft.cli.serve import FLAGS, check_settings, setting_options
from crossdraft.errors import CrossdraftError
from crossdraft.files import only_process

if TYPE_CHECKING:
    from crossdraft.serve.service import Service
    from crossdraft.serve.settings import ServerSettings


class BatchCommand(TyperCommand):
    """Command with an option for each setting of the server that is about models, the engine or media."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's own options, and those of the settings."""
        return [*super().get_params(ctx), *setting_options("Models", "Engine", "Media")]


app = typer.Typer(add_completion=False)


@app.command(cls=BatchCommand)
def batch(
    ctx: typer.Context,
    given: Annotated[
        Path, typer.Argument(metavar="IN.jsonl", help='One {"custom_id", "method", "url", "body"} a line.')
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="The answers, a line each, in the same order.")],
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings by name, in YAML.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Begin anew, whatever OUT holds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Answer the lines of an OpenAI batch file into another file; what that holds already is not asked again.

    Without --media-root a file:NAME is any file of yours. A line that cannot be answered gets a line with its error,
    and the exit status is 1.
    """
    from crossdraft.cli.main import complain, with_flags
    from crossdraft.cli.reporting import report
    from crossdraft.serve.settings import read_settings

    flags = ctx.meta.get(FLAGS, {})
    try:
        settings = read_settings(config, flags)
        run = BatchFiles(given, out, settings.body_bytes)
        known = run.find_known(force=force)
        if known < run.total:
            _answer(run, settings)
    except CrossdraftError as error:  # settings of the file and the environment keep their names
        raise typer.Exit(complain(with_flags(str(error), flags))) from None
    said = f"{run.total} lines, {known} of them known before: {run.done - run.failed} answered, {run.failed} failed."
    found = {"lines": run.total, "known": known, "answered": run.done - run.failed, "failed": run.failed}
    report(found, said, as_json=as_json)
    if run.failed:
        raise typer.Exit(1)


@dataclass
class BatchFiles:
    """A file of requests, `given`, and one of answers, `out`, which is written line by line.

    Args:
        most: largest number of bytes of a request that is read.
        total, done, failed: numbers of requests, of answers, and of those among them that are errors.
        size: bytes of the whole lines of `out`.
    """

    given: Path
    out: Path
    most: int
    total: int = 0
    done: int = 0
    failed: int = 0
    size: int = 0
    _ids: set[str | None] = field(default_factory=set[str | None])

    def find_known(self, *, force: bool) -> int:
        """Count the requests, and those whose answers are there; a last line that was cut does not count.

        Raises:
            CrossdraftError: a file cannot be read or written, or `out` holds something else than answers to `given`.
        """
        from crossdraft.serve.batch import custom_id, lines_of

        check_outputs(self.out, force=True)
        try:
            with self.given.open("rb") as asked:
                if self.out.exists() and self.out.samefile(self.given):
                    raise CrossdraftError(f"{self.out} holds the requests; name another file for the answers.")
                lines = lines_of(asked, self.most)
                for answer in () if force or not self.out.exists() else self.out.open("rb"):
                    if not answer.endswith(b"\n"):
                        break
                    if not self._counted(answer) or custom_id(answer) != custom_id(next(lines, b"")):
                        raise CrossdraftError(
                            f"{self.out} does not hold the answers to {self.given}, in its line {self.done}; name "
                            "another file, or add --force to overwrite it."
                        )
                    self._ids.add(custom_id(answer))
                self.total = self.done + sum(1 for _ in lines)
        except OSError as error:
            raise CrossdraftError(f"Cannot read {error.filename}: {error.strerror}; check the path.") from None
        if not self.total:
            raise CrossdraftError(f"{self.given} is empty; write a request into each line.")
        return self.done

    def _counted(self, line: bytes) -> bool:
        """Count an answer; false if it is none."""
        self.done, self.size = self.done + 1, self.size + len(line)
        with suppress(ValueError, TypeError, KeyError):
            response = json.loads(line)["response"]
            self.failed += response is None or response["status_code"] != 200
            return True
        return False

    async def answer(self, service: "Service", step: Callable[[str], None]) -> None:
        """Answer the requests that are left; each line is written whole or not at all, however this ends.

        Raises:
            CrossdraftError: there is no room for the answers, another run writes them, or the engine has stopped.
        """
        from crossdraft.serve.batch import answers, lines_of

        options = service.settings.engine
        parallel = options.max_batch + min(options.max_queue or 0, options.max_batch)  # media are read meanwhile
        with only_process(self.out), self.given.open("rb") as asked, self.out.open("ab", buffering=0) as file:
            lines = islice(lines_of(asked, self.most), self.done, None)
            try:
                file.truncate(self.size)
                async with aclosing(answers(service, lines, service.anybody, self._ids, parallel)) as found:
                    async for one in found:
                        line = json.dumps(one).encode() + b"\n"
                        if file.write(line) < len(line):
                            raise CrossdraftError(f"Cannot write {self.out}: there is no room; make some, begin again.")
                        self._counted(line)
                        step("")
            finally:
                file.truncate(self.size)


def _answer(run: BatchFiles, settings: "ServerSettings") -> None:
    """Load the models, and answer the requests that are left."""
    check_settings(settings)
    from crossdraft.cli.reporting import hush, progress, waiting
    from crossdraft.serve.local_files import LocalFiles, OwnFiles
    from crossdraft.serve.service import Service, load_engine

    hush()
    with waiting("loading the models"):
        engine = load_engine(settings)
    with engine, progress("answers", run.total - run.done) as step:
        service = Service(
            settings, engine, local=LocalFiles(settings.media_root) if settings.media_root else OwnFiles()
        )
        try:
            asyncio.run(run.answer(service, step))
        except OSError as error:
            raise CrossdraftError(f"Cannot use {error.filename or run.out}: {error.strerror}; begin again.") from None
        finally:
            service.close()
