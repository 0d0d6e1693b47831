"""Takes the picture of the served page, `docs/serve.png`: `python -m tools.screenshot [FILE]`.

`crossdraft serve` runs on loopback with the reference pair and one clip of held-out scenes. A real headless Chromium
asks, compares with the target alone, and takes the picture while clip and events play. It needs `make setup` and
Debian's `chromium`; nothing else should run meanwhile, for the picture shows times.
"""

import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from crossdraft_lab.bench.serving.process import serving
from crossdraft_lab.scenes import make_scene, split_seeds, write_clip

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

PICTURE = Path(__file__).parents[1] / "docs" / "serve.png"
SCENE = 1  # of the held-out ones
QUESTION = "Describe the scene in detail."
VIEW: "ViewportSize" = {"width": 1180, "height": 880}
WAIT_S = 60.0
PLAYED_S = 0.6  # of the clip when the picture is taken
SHOWN = "document.querySelector('#clip').readyState >= 2 && document.querySelector('#events').dataset.frame"
ANSWERED = "document.querySelector('#status').textContent.startsWith('Answered')"
COMPARED = "document.querySelector('#saved').textContent.endsWith('ms')"
PLAYING = f"!document.querySelector('#clip').paused && document.querySelector('#clip').currentTime >= {PLAYED_S}"


def until(page: "Page", holds: str) -> None:
    """Wait for an expression; playwright's own way compiles it in the page, which the page's policy forbids.

    Raises:
        TimeoutError: it does not come true.
    """
    end = time.monotonic() + WAIT_S
    while not page.evaluate(holds):
        if time.monotonic() > end:
            raise TimeoutError(f"{holds} does not come true: {page.text_content('body')}")
        page.wait_for_timeout(20)


def take(page: "Page", address: str, picture: Path) -> None:
    """Ask on the page, compare, and write what is shown then."""
    page.goto(address)
    until(page, SHOWN)
    page.fill("#question", QUESTION)
    page.click("#ask")
    until(page, ANSWERED)
    page.click("#compare")
    until(page, COMPARED)
    page.eval_on_selector("#clip", "clip => { clip.controls = false; clip.currentTime = 0; return clip.play(); }")
    until(page, PLAYING)
    page.screenshot(path=picture)


def main(picture: Path = PICTURE) -> None:
    """Start the server and the browser, and take the picture."""
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory(prefix="crossdraft-") as folder:
        clips = Path(folder) / "clips"
        write_clip(make_scene(split_seeds("test")[SCENE]), clips)
        with serving(["--media-root", str(clips)], Path(folder)) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            take(browser.new_page(viewport=VIEW), f"http://127.0.0.1:{server.port}", picture)
            browser.close()
    print(f"{picture}: {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
