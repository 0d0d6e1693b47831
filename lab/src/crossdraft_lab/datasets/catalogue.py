"""Table of the data sets that can be read: layout, licence, reader. Commands and the docs' table use it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from crossdraft.checks import did_you_mean
from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.dsec import Dsec, is_sequence
from crossdraft_lab.datasets.eventdrive import EventDrive, annotations
from crossdraft_lab.datasets.events_only import E2vid, NCaltech101, text_recordings
from crossdraft_lab.datasets.files import subfolders
from crossdraft_lab.datasets.instructions import Instructions, has_conversations
from crossdraft_lab.datasets.mmspec import MmSpec, split_files
from crossdraft_lab.datasets.recorded import ClipPlan
from crossdraft_lab.datasets.sample import DatasetReader
from crossdraft_lab.datasets.stereo_hdf5 import StereoHdf5, data_files
from crossdraft_lab.datasets.talk2event import Talk2Event
from crossdraft_lab.datasets.video_qa import ActivityNetQa, MsrvttQa, MsvdQa

UNKNOWN = "none that we found; ask its authors"


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """A data set of the catalogue.

    Args:
        title: name for people.
        paper: paper that describes it.
        licence: licence as its authors state it.
        layout: description of the files by which it is recognised.
        found: true if a folder holds it.
        reader: makes its reader from a folder and a plan of clips.
        cuts: true if its clips are cut out of longer recordings.
    """

    title: str
    paper: str
    licence: str
    layout: str
    found: Callable[[Path], bool]
    reader: Callable[[Path, ClipPlan], DatasetReader]
    cuts: bool = False


def _holds(*patterns: str) -> Callable[[Path], bool]:
    """Build a test that is true if a folder, or one right below it, has files of every pattern."""

    def found(root: Path) -> bool:
        return any(all(any(folder.glob(pattern)) for pattern in patterns) for folder in subfolders(root, 1))

    return found


def _holds_msrvtt(root: Path) -> bool:
    return _holds("*_qa.json")(root) or (_holds("*_q.json")(root) and _holds("video[0-9]*.*")(root))


def _holds_instructions(root: Path) -> bool:
    return any(has_conversations(path) for folder in subfolders(root, 1) for path in sorted(folder.glob("*.json*")))


def _holds_eventbench(root: Path) -> bool:
    return _holds_instructions(root) and any(any(folder.glob("*.npz")) for folder in subfolders(root))


# Looked for in this order: a narrower layout comes first.
DATASETS: Mapping[str, DatasetRecord] = {
    "dsec": DatasetRecord(
        "DSEC", "Gehrig et al., RA-L 2021", "CC BY-SA 4.0 as far as we know: read its site; its scripts MIT",
        "<sequence>/events/left/events.h5", lambda root: any(map(is_sequence, subfolders(root))), Dsec, cuts=True,
    ),
    "mvsec": DatasetRecord(
        "MVSEC", "Zhu et al., RA-L 2018", UNKNOWN,
        "<sequence>_data.hdf5", lambda root: bool(data_files(root, "mvsec")),
        lambda root, plan: StereoHdf5(root, plan, "mvsec"), cuts=True,
    ),
    "m3ed": DatasetRecord(
        "M3ED", "Chaney et al., CVPRW 2023", "CC BY-SA 4.0, by a redistributor's card",
        "<sequence>_data.h5", lambda root: bool(data_files(root, "m3ed")),
        lambda root, plan: StereoHdf5(root, plan, "m3ed"), cuts=True,
    ),
    "ncaltech101": DatasetRecord(
        "N-Caltech101", "Orchard et al., Frontiers in Neuroscience 2015", "CC BY 4.0",
        "<class>/image_0001.bin", lambda root: any(any(path.glob("image_*.bin")) for path in subfolders(root)),
        NCaltech101, cuts=True,
    ),
    "talk2event": DatasetRecord(
        "Talk2Event", "Kong et al., NeurIPS 2025", f"{UNKNOWN} (its scenes are DSEC's)",
        "meta_data_v10/<split>/<sequence>.json", lambda root: any(root.glob("meta_data*")),
        lambda root, _: Talk2Event(root),
    ),
    "eventdrive": DatasetRecord(
        "EventDrive", "Lu et al., CVPR 2026",
        "none in its card's header; ask its authors (its drives are DSEC's, M3ED's and PKU-DAVIS-SOD's)",
        "json/<task>/*.json, data/<task>", lambda root: bool(annotations(root)), lambda root, _: EventDrive(root),
    ),
    "mmspec": DatasetRecord(
        "MMSpec", "Shen et al., arXiv 2603.14989", f"{UNKNOWN}; the images have the terms of six data sets",
        "<split>/mmspec.jsonl, <split>/images", lambda root: bool(split_files(root)), lambda root, _: MmSpec(root),
    ),
    "eventbench": DatasetRecord(
        "EventBench", "Liu et al., arXiv 2511.18448", "on request from its authors, under their terms",
        "*.json of conversations, *.npz", _holds_eventbench, Instructions,
    ),
    "eventgpt": DatasetRecord(
        "EventGPT's instructions, and EventGPT_Instruction_Subset.json", "Liu et al., CVPR 2025",
        "MIT, by its card; its recordings have terms of their own, such as DSEC's",
        "*.json of conversations, *.npy", _holds_instructions, Instructions,
    ),
    "msvd-qa": DatasetRecord(
        "MSVD-QA", "Xu et al., ACM MM 2017", f"{UNKNOWN}; the videos are YouTube's users'",
        "*_qa.json, youtube_mapping.txt", _holds("youtube_mapping.txt"), lambda root, _: MsvdQa(root),
    ),
    "msrvtt-qa": DatasetRecord(
        "MSRVTT-QA", "Xu et al., ACM MM 2017", f"{UNKNOWN}; the videos are YouTube's users'",
        "*_qa.json, video0.mp4", _holds_msrvtt, lambda root, _: MsrvttQa(root),
    ),
    "activitynet-qa": DatasetRecord(
        "ActivityNet-QA", "Yu et al., AAAI 2019", "MIT (annotations); the videos are YouTube's users'",
        "*_q.json, *_a.json, v_<name>.mp4", _holds("*_q.json"), lambda root, _: ActivityNetQa(root),
    ),
    "e2vid": DatasetRecord(
        "E2VID's recordings", "Rebecq et al., TPAMI 2019", UNKNOWN,
        "<sequence>.zip or .txt of lines t x y p", lambda root: bool(text_recordings(root)), E2vid, cuts=True,
    ),
}  # fmt: skip


def dataset_in(root: Path, name: str | None = None) -> str:
    """Name of the data set in a folder: `name`, or what the layout shows.

    Raises:
        CrossdraftError: no folder, an unknown name, or an unknown layout.
    """
    if name is not None and name not in DATASETS:
        raise CrossdraftError(
            f"There is no data set '{name}'{did_you_mean(name, DATASETS)}; choose one of {', '.join(DATASETS)}."
        )
    if not root.is_dir():
        raise CrossdraftError(f"There is no folder {root}; name the one that holds the data set.")
    try:
        found = name or next((name for name, record in DATASETS.items() if record.found(root)), None)
    except OSError as error:
        raise CrossdraftError(f"{root} cannot be read: {error.strerror or error}.") from error
    if found is None:
        layouts = "; ".join(f"{name}: {record.layout}" for name, record in DATASETS.items())
        raise CrossdraftError(f"{root} has the layout of no data set that is read ({layouts}); name it with --dataset.")
    return found


def open_dataset(root: Path, name: str, plan: ClipPlan | None = None) -> DatasetReader:
    """Open the reader of a data set; errors as its own."""
    return DATASETS[name].reader(root, plan or ClipPlan())
