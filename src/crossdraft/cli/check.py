"""`crossdraft check`: tries whether a model can be a target, and a drafter on it."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossdraft.checkpoints.models import check_target
from crossdraft.cli.options import AsJson, check_values
from crossdraft.cli.reporting import hush, import_engine, report, saying
from crossdraft.errors import CrossdraftError
from crossdraft.methods import check_drafter_files, read_spec, reads_events

if TYPE_CHECKING:
    from crossdraft.api import Options
    from crossdraft.trial import Test

app = typer.Typer(help="Try whether a model can be a target.", add_completion=False)
QUESTIONS = ("What is it?", "Say it again.", "What is it?")


@app.command()
def check(
    target: Annotated[str, typer.Argument(help="Folder of a checkpoint, or the id of one in the local cache.")],
    drafter: Annotated[
        str | None, typer.Option(help="Also try this drafter on it: its answers are the target's.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Device that the weights are tried on.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Dtype that the weights are tried in.")] = None,
    as_json: AsJson = False,
) -> None:
    """Try a model's class on a small random model, then its weights, beside Hugging Face's own.

    Exit status: 0 if all is right, 1 if a comparison is wrong, 2 if a folder or an option cannot be used.
    """
    drafter = None if drafter == "none" else drafter
    check_values(drafter=drafter, device=device, dtype=dtype)
    check_target(target)
    if drafter is not None:
        _check_drafter(drafter, target)
    import_engine()
    from crossdraft.api import Options
    from crossdraft.engine.pass_times import CHUNK, least_seconds
    from crossdraft.load import load_target
    from crossdraft.processor_prompt import sample_prompts
    from crossdraft.trial import WORDS, keep_trial, try_class, try_greedy, try_weights

    hush()
    with saying(f"checking {target}") as say:
        say("loading")
        loaded = load_target(target, device, dtype, tried=False)
        say("the class, on a small random model")
        prompts, untried = sample_prompts(loaded.prepare)
        tests = try_class(loaded.model, prompts)
        keep_trial(loaded.model, prompts, tests)
        for name, prompt in ({"text": WORDS} | prompts).items():
            say(f"the weights, {name}")
            tests.append(try_weights(loaded, name, prompt))
            tests += [try_greedy(loaded, name, prompt, chains=chains) for chains in (True, False)]
        if drafter is not None and all(test.passes for test in tests):
            say(f"the drafter {drafter}")
            tests += _drafted(target, drafter, Options(device=device, dtype=dtype), shows="image" in prompts)
        say("times")
        times = {}
        if loaded.context > CHUNK:
            times = dict(zip(("V(1)", "V(16)"), least_seconds(loaded, 1, 1, [0, 15]), strict=True))
    facts = {
        "target": target, "class": type(loaded.model).__name__, "passes": all(test.passes for test in tests),
        "tests": [asdict(test) for test in tests], "untried": untried, "seconds": times,
    }  # fmt: skip
    report(facts, *_lines(facts), as_json=as_json)
    raise typer.Exit(0 if facts["passes"] else 1)


def _check_drafter(drafter: str, target: str) -> None:
    """Refuse a drafter whose files are missing, or which reads what is not shown here."""
    spec = read_spec(drafter)
    check_drafter_files(spec, target)
    if reads_events(spec):
        raise CrossdraftError(
            f"The drafter {spec} reads an event recording, and none is shown here; name one that needs none, such as "
            "union:memory,ngram."
        )


def _drafted(target: str, drafter: str, options: "Options", *, shows: bool) -> "list[Test]":
    """Compare a few answers with a drafter with those of the target alone."""
    import numpy as np

    from crossdraft.api import Engine
    from crossdraft.engine.request import Request
    from crossdraft.trial import GREEDY, Test

    image = np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8) if shows else None
    with Engine.load(target, drafter, options) as engine:
        requests = [Request(question, image=image, max_new_tokens=GREEDY) for question in QUESTIONS]
        answers = [(engine.generate(request), engine.alone(request)) for request in requests]
    why = next((answer.drafter_error for answer, _ in answers if answer.drafter_error), "")
    same = all(answer.tokens == alone.tokens for answer, alone in answers)
    why = why or ("" if same else "an answer differs from the target's own")
    return [Test(f"drafter {drafter}", None if why else 0.0, same and not why, why)]


def _lines(facts: dict[str, Any]) -> list[str]:
    """The result for people."""
    lines = [f"{facts['target']}: {facts['class']} {'passes' if facts['passes'] else 'does not pass'}"]
    for test in facts["tests"]:
        error = "-" if test["error"] is None else f"{test['error']:.0e}"
        lines.append(f"  {'right' if test['passes'] else 'WRONG'}  {error:>6}  {test['name']}  {test['why']}".rstrip())
    lines += [f"  not tried: {one}: {why}" for one, why in facts["untried"].items()]
    return lines + [f"  {name}: {seconds * 1e3:.1f} ms" for name, seconds in facts["seconds"].items()]
