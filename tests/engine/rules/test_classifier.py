"""`judge` by hand, in exact expectation, and what it refuses."""

import pytest
import torch
from safetensors.torch import save_file

from crossdraft.api import Engine
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.accept import Acceptance
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.rules import RULES, check_rule, rule_for
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.files import fingerprint
from crossdraft.options import Options
from crossdraft_lab.rules.classifier import FILE, TARGET, Classifier
from tests.engine.zoo import VOCABULARY, ZOO, as_target, noisy

RARE = torch.tensor([[1e-9, 1 - 2e-9, 1e-9]] * 3).double()  # the target writes 1, and next to nothing else


@pytest.fixture
def folder(tmp_path):
    """A judge that looks at the first logit: 0 is a coin, ln 3 gives 3/4, minus that 1/4."""
    save_row(tmp_path, {"row": torch.tensor([1.0, 0.0, 0.0]), "bias": torch.tensor(0.0)})
    return str(tmp_path)


def save_row(folder, weights: dict[str, torch.Tensor], target: str = "of nobody") -> None:
    save_file(weights, folder / FILE, {TARGET: target})


def saved(model, folder):
    """The model, as if it had been loaded from that folder."""
    model.save_pretrained(folder)
    model.config.name_or_path = model.name_or_path = str(folder)
    return model


def seen(*firsts: float) -> torch.Tensor:
    """Logits whose first is given."""
    return torch.tensor([[first, 9.0, -9.0] for first in firsts])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_what_it_finds_harmless_is_kept_whoever_wrote_it(folder):
    """Tokens 0 and 2 have next to no chance; logits after them give 3/4 and 1/4. The root's own say nothing."""
    ln3 = torch.tensor(3.0).log().item()
    chain = DraftTree.chain([0, 2])
    assert Classifier(0.5, folder).chances(seen(ln3, -ln3)).tolist() == pytest.approx([0.75, 0.25])
    assert Classifier(0.5, folder)(chain, RARE, generator(), seen(-99, ln3, -ln3)) == Acceptance((0,), 1)
    assert Classifier(0.2, folder)(chain, RARE, generator(), seen(-99, ln3, -ln3)) == Acceptance((0, 1), 1)
    assert Classifier(0.8, folder)(chain, RARE, generator(), seen(99, ln3, 99)) == Acceptance((), 1)


def test_of_siblings_the_first_harmless_one_is_kept(folder):
    tree = DraftTree((0, 2), (ROOT, ROOT))
    assert Classifier(0.5, folder)(tree, RARE, generator(), seen(0, -5, 5)).path == (1,)
    assert Classifier(0.5, folder)(tree, RARE, generator(), seen(0, 5, 5)).path == (0,)


def test_where_it_finds_harm_it_is_rejection(folder):
    probs = torch.tensor([[0.6, 0.4, 0.0], [0.2, 0.3, 0.5]]).double()
    chain = DraftTree.chain([1], torch.tensor([[0.1, 0.8, 0.1]]).double())
    harmful = seen(0, -50)
    for seed in range(40):
        own = Classifier(0.5, folder)(chain, probs, generator(seed), harmful)
        assert own == RULES["rejection"].verify(chain, probs, generator(seed))


def test_what_the_request_rules_out_stays_out(folder):
    """As after top-k: token 0 has no chance at all, however harmless it is."""
    out = torch.tensor([[0.0, 1.0, 0.0]] * 2).double()
    assert Classifier(0.5, folder)(DraftTree.chain([0]), out, generator(), seen(0, 99)) == Acceptance((), 1)


def test_a_threshold_of_one_is_exact(folder):
    assert Classifier(1.0, folder)(DraftTree.chain([0]), RARE[:2], generator(), seen(0, 900)) == Acceptance((), 1)


def test_the_engine_hands_it_the_logits_and_its_answers_say_lossy(tmp_path):
    """A judge that keeps everything: whatever is drafted stands, under any drafter."""
    model, prompt = ZOO["video_llava"]()
    target, stranger = as_target(saved(model, tmp_path / "target"), prompt), as_target(noisy(model, 0.05), prompt)
    keep_all = {"row": torch.zeros(VOCABULARY), "bias": torch.tensor(9.0)}
    save_row(tmp_path, keep_all, fingerprint(tmp_path / "target"))
    request = Request("xx", max_new_tokens=24, sampling=Sampling(temperature=1.0, seed=1))
    rule = f"judge:dir={tmp_path}"
    runner = DraftRunner(IndependentDrafter(stranger), "off")
    answer = DecodeLoop(target, runner, rule=rule, adaptive=False).generate([request])[0]
    assert answer.stats.accepted == answer.stats.drafted > 0
    assert answer.stats.lossless is False
    assert answer.stats.rule == f"judge:threshold=0.5,dir={tmp_path}"


def test_another_target_of_the_same_vocabulary_is_refused(tmp_path):
    """By its weights, in one sentence, before anything is answered; so is one that was loaded from no folder."""
    model, prompt = ZOO["video_llava"]()
    own = saved(model, tmp_path / "own")
    save_row(tmp_path, {"row": torch.zeros(VOCABULARY), "bias": torch.tensor(0.0)}, fingerprint(tmp_path / "own"))
    rule = f"judge:dir={tmp_path}"
    DecodeLoop(as_target(own, prompt), rule=rule)
    other, _ = ZOO["video_llava"]()
    with pytest.raises(CrossdraftError, match="loaded from no folder"):
        DecodeLoop(as_target(other, prompt), rule=rule)
    theirs = saved(noisy(other, 0.05), tmp_path / "theirs")
    for refused in (rule, "judge"):
        with pytest.raises(CrossdraftError, match=r"was trained for another target \([^.]*\)[^.]*\.$"):
            DecodeLoop(as_target(theirs, prompt), rule=refused)
    DecodeLoop(as_target(theirs, prompt), rule="ears")


def test_the_shipped_classifier_is_of_the_reference_target(pair):
    """And of no other: an engine refuses it when it is made."""
    with Engine.load("reference", None, Options(rule="judge", device="cpu", dtype="float32")):
        pass
    with pytest.raises(CrossdraftError, match="The shipped judge was trained for another target"):
        Engine.load(pair.target, None, Options(rule="judge", device="cpu", dtype="float32"))


def test_what_is_no_classifier_for_this_target_is_refused(folder, tmp_path):
    logits = torch.zeros(2, 5)
    with pytest.raises(CrossdraftError, match="trained for 3 tokens, the target has 5"):
        Classifier(0.5, folder).chances(logits)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CrossdraftError, match=r"is no judge .*crossdraft train judge"):
        Classifier(0.5, str(tmp_path / "empty")).chances(logits)
    with pytest.raises(CrossdraftError, match="leave out settings that need a logits processor"):
        Classifier(0.5, folder)(DraftTree.chain([0]), RARE[:2], generator())
    with pytest.raises(CrossdraftError, match="leave out settings that need a logits processor"):
        rule_for("judge", Sampling(temperature=1.0, no_repeat_ngram_size=3))
    with pytest.raises(CrossdraftError, match="threshold must be a number between 0 and 1"):
        rule_for("judge:threshold=2", Sampling(temperature=1.0))


@pytest.mark.parametrize(
    "weights",
    [
        {"row": torch.zeros(3, 1), "bias": torch.tensor(0.0)},
        {"row": torch.zeros(3), "bias": torch.zeros(2)},
        {"row": torch.tensor([0.0, torch.nan, 0.0]), "bias": torch.tensor(0.0)},
        {"row": torch.zeros(3), "bias": torch.tensor(torch.inf)},
        {"row": torch.zeros(3)},
        None,
    ],
)
def test_a_file_that_is_no_classifier_is_refused_before_anything_is_read(tmp_path, weights):
    if weights is not None:
        save_row(tmp_path, weights)
    for ask in (check_rule, lambda spec: rule_for(spec, Sampling(temperature=1.0))):
        with pytest.raises(CrossdraftError, match=r"is no judge.*crossdraft train judge"):
            ask(f"judge:dir={tmp_path}")


def test_a_file_that_names_no_target_is_refused(tmp_path):
    save_file({"row": torch.zeros(3), "bias": torch.tensor(0.0)}, tmp_path / FILE)
    with pytest.raises(CrossdraftError, match="does not say which target it was trained for; train it anew"):
        check_rule(f"judge:dir={tmp_path}")
