"""What of `make interop-vllm` is ours: the drafter that knows the answers, and the passes that are expected of it."""

import json

import pytest

from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.methods import build, read_spec, register
from crossdraft.records import DrafterContext
from tests.integrations.vllm.fake_vllm import EOS
from tests.integrations.vllm.helpers import ScriptedDrafter, ask, hosting
from tests.interop import vllm_hosted, vllm_times
from tests.interop.known_answers import KNOWN
from tests.interop.vllm_hosted import CASES, DRAFT, Asked


def test_it_drafts_the_answer_from_where_it_is(tmp_path, no_drafters_registered):
    file = tmp_path / "known.json"
    file.write_text(json.dumps({"a.h5 what?": [5, 6, 7, 8]}))
    register(KNOWN)
    for wrong, drafts in ((10**9, [(5, 6), (8,)]), (1, [(5, 7), (9,)])):
        drafter = build(f"known:file={file},wrong={wrong}", DrafterContext(None))
        (state,) = drafter.begin([Request("what?", events="folder/a.h5")])
        found = [drafter.propose([state], [Budget(2)])[0].tree.tokens]
        drafter.commit([state], [VerifyOutput((0, 1), (5, 6, 7))])
        found.append(drafter.propose([state], [Budget(2)])[0].tree.tokens)
        assert found == drafts


@pytest.mark.parametrize("length", [1, 2, 48, 49, 50, 51, 98, 99, 120])
@pytest.mark.parametrize(("case", "budget"), [("known", 10_000), ("known, riding", 8), ("wrong", 10_000)])
def test_the_expected_passes_are_those_of_the_fake_engine(length, case, budget):
    answer = [*([1, 2, 3] * 40)[: length - 1], EOS]
    wrong_answer = [4] * length if case == "wrong" else answer
    scheduler = hosting({"a": answer}, ScriptedDrafter({"a": wrong_answer}), k=DRAFT, budget=budget + DRAFT)
    prompt = budget + DRAFT + 6 if case == "known, riding" else 10
    scheduler.add_request(ask("a", prompt=prompt))
    scheduler.run()
    expected = CASES[case].passes
    assert expected is not None
    assert scheduler.passes == expected([Asked("", "", "a", tuple(answer))])


def test_cases_name_drafters_that_there_are(no_drafters_registered):
    register(KNOWN)
    for case in (*CASES.values(), *vllm_times.CASES.values()):
        if case.drafter is not None:
            read_spec(case.drafter)
    assert vllm_hosted.speculation(CASES["alone"], vllm_hosted.Path()) == {}


def test_where_times_are_taken_nobody_waits_for_the_drafter():
    """Where passes are counted everybody does."""
    counted, timed = (
        vllm_hosted.speculation(cases["event"], vllm_hosted.Path())["additional_config"]["crossdraft"]
        for cases in (CASES, vllm_times.CASES)
    )
    assert counted["wait_ms"] == 1000 * vllm_hosted.QUIET_S
    assert timed["cores"] == [vllm_hosted.DRAFT_CORE]
    assert "wait_ms" not in timed
