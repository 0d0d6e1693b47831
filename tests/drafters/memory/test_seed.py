"""A memory that is seeded: what it drafts before it has seen anything, and what is refused."""

import json
import shutil

import pytest

from crossdraft.cli.main import main
from crossdraft.drafters.memory.drafter import question_number
from crossdraft.drafters.memory.seed import SeedTarget, read_seed, vocabulary_fingerprint
from crossdraft.engine.drafter import Budget
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.load import target_fingerprint, tokenizer_of, vocabulary_of
from crossdraft.methods import build
from crossdraft.records import DrafterContext
from crossdraft_lab.train.capture.store import CaptureStore
from tests.support import tiny_pair

LINES = [
    {"scene": 0, "question": "What is ahead?", "target_tokens": [5, 6, 7, 8], "draft_tokens": [1]},
    {"scene": 1, "question": "Is it dark?", "target_tokens": [9, 6, 7]},
]


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture(scope="module")
def captured(pair, tmp_path_factory):
    out = tmp_path_factory.mktemp("seed") / "store"
    settings = "--clips 2 --prompts 3 --max-new-tokens 8 --workers 0 --device cpu --json"
    assert main(["capture", str(out), "--target", str(pair.target), *settings.split()]) == 0
    return out


def drafted(spec: str, question: str, context: DrafterContext, namespace: str = "") -> list[int]:
    drafter = build(spec, context)
    (state,) = drafter.begin([Request(question, namespace=namespace)])
    (draft,) = drafter.propose([state], [Budget(16)])
    return list(draft.tree.main_path_tokens)


def test_a_first_question_finds_its_recorded_answer(recorded):
    nobody = DrafterContext(target=None)
    assert drafted("memory", "What is ahead?", nobody) == []
    assert drafted(f"memory:seed={recorded}", "what is  ahead?", nobody)[:4] == [5, 6, 7, 8]
    assert drafted(f"memory:seed={recorded}", "Is it dark?", nobody)[:3] == [9, 6, 7]
    assert drafted(f"memory:seed={recorded}", "Is it dark?", nobody, namespace="another")[:3] == [9, 6, 7]


def test_a_capture_gives_its_answers_and_their_questions(pair, captured):
    store = CaptureStore.open(captured)
    tokenizer = tokenizer_of(str(pair.target))
    known = SeedTarget("x", target_fingerprint(str(pair.target)), lambda ids: str(tokenizer.decode(list(ids))))
    found = read_seed(captured, known, question_number)
    assert [tokens for _, tokens in found] == [tokens.tolist() for tokens in store.answer_tokens()]
    from crossdraft_lab.train.heads.task import captured_source, question_of

    source = captured_source(store)
    expected = [question_number(question_of(source, number)) for number in range(len(store))]
    assert [scope.question for scope, _ in found] == expected
    assert len(set(expected)) > 1


def test_it_drafts_the_captured_answer_as_a_hidden_draft(pair, captured):
    store = CaptureStore.open(captured)
    from crossdraft_lab.train.heads.task import captured_source, question_of

    question = question_of(captured_source(store), 1)
    answer = next(tokens for number, tokens in enumerate(store.answer_tokens()) if number == 1)
    path = drafted(f"memory:seed={captured}", question, DrafterContext(str(pair.target)))
    assert path[:4] == answer.tolist()[:4]


def test_what_is_written_to_a_file_leaves_the_seed_out(recorded, tmp_path):
    spec = f"memory:seed={recorded},folder={tmp_path / 'kept'}"
    drafter = build(spec, DrafterContext(target=None))
    (state,) = drafter.begin([Request("New?")])
    state.written += [40, 41]
    drafter.end([state])
    again = DrafterContext(target=None)
    assert drafted(spec, "New?", again)[:2] == [40, 41]
    assert drafted(spec, "Is it dark?", again)[:3] == [9, 6, 7]
    assert drafted(f"memory:folder={tmp_path / 'kept'}", "Is it dark?", again)[:3] != [9, 6, 7]


def refused(spec: str, context: DrafterContext, sentence: str) -> None:
    with pytest.raises(CrossdraftError, match=sentence):
        build(spec, context)


def test_a_capture_of_another_vocabulary_is_refused(pair, captured, tmp_path):
    other = tiny_pair(tmp_path, seed=3)  # the same tokenizer, other weights
    build(f"memory:seed={captured}", DrafterContext(str(other.target)))
    index = json.loads((captured / "index.json").read_text())
    assert index["owner"]["vocabulary"] == vocabulary_fingerprint(vocabulary_of(str(pair.target)))
    copy = tmp_path / "copy"
    for vocabulary in ("f" * 32, ""):  # of another; of an earlier version, which does not say
        shutil.copytree(captured, copy, dirs_exist_ok=True)
        index["owner"]["vocabulary"] = vocabulary
        (copy / "index.json").write_text(json.dumps(index))
        refused(f"memory:seed={copy}", DrafterContext(str(other.target)), "is a capture of another target")
        build(f"memory:seed={copy}", DrafterContext(str(pair.target)))  # the very one


def test_a_seed_without_answers_is_refused(pair, captured, tmp_path):
    (tmp_path / "none.jsonl").write_text("\n")
    refused(f"memory:seed={tmp_path / 'none.jsonl'}", DrafterContext(target=None), "holds no answers")
    shutil.copytree(captured, tmp_path / "empty")
    index = json.loads((captured / "index.json").read_text())
    (tmp_path / "empty" / "index.json").write_text(json.dumps(index | {"shards": []}))
    refused(f"memory:seed={tmp_path / 'empty'}", DrafterContext(str(pair.target)), "holds no answers")


@pytest.mark.parametrize("content", ["no json\n", '{"question": "?"}\n', '{"question": 3, "target_tokens": ["a"]}\n'])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "x.jsonl").write_text(content)
    refused(f"memory:seed={tmp_path / 'x.jsonl'}", DrafterContext(target=None), "cannot be read")
    refused(f"memory:seed={tmp_path / 'gone'}", DrafterContext(target=None), "cannot be read")
    (tmp_path / "folder").mkdir()
    refused(f"memory:seed={tmp_path / 'folder'}", DrafterContext(target=None), "cannot be read")


def test_no_ids_that_a_target_lacks(pair, tmp_path):
    """Recorded answers name no tokenizer: ids beyond the target's are of another."""
    (tmp_path / "x.jsonl").write_text(json.dumps({"question": "?", "target_tokens": [5, 31999]}) + "\n")
    context = DrafterContext(str(pair.target), vocab_size=320)
    refused(f"memory:seed={tmp_path / 'x.jsonl'}", context, "has the token 31999, and the target's vocabulary 320")
