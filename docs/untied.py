"""How many figures of each page are tied to no JSON: a list that may only shrink; `docs/figures.py` ties the others."""

CARDS, LAB_CARDS = "src/crossdraft/reference", "lab/src/crossdraft_lab/reference"

# Figures of an earlier run, no JSON kept: how many of each page. The counts may only fall; whoever measures again keeps
# the JSON in docs/results and ties the figures below. Limits and settings that stand between them are counted, too.
EARLIER_RUNS = {
    "docs/results/report.md": 13  # seconds that the runs took, and two temperatures
}
# Pages without measured figures: limits, sizes of models, settings, versions.
SETTINGS = {
    "docs/adding_a_vlm.md": 2,
    "docs/deploy.md": 1,
    "docs/experiments.md": 10,
    "docs/planning.md": 1,
    "docs/serving_in_process.md": 2,
    f"{CARDS}/heads/event_medusa/README.md": 2,
    f"{LAB_CARDS}/heads/fast/README.md": 2,
    f"{CARDS}/heads/glance/README.md": 5,
    f"{LAB_CARDS}/judge/README.md": 1,
}
UNTIED = EARLIER_RUNS | SETTINGS
