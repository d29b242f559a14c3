"""Takes the picture of the dashboard in the README, from a Lethe of its own.

python -m docs.screenshot     trains Cora, deletes from it, runs a drill, and writes images/dashboard.png
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

from benchmarks.performance.service.lethe_process import KEY, LetheProcess

PICTURE = Path(__file__).parent / "images" / "dashboard.png"
#: Deleted one by one, so that the charts have points. Node 1703 alone supports a direction of the feature space.
NODES = [["12", "57"], ["1703"], ["100"], ["2001", "2002", "2003"], ["640"], ["7", "1500"]]
SIZE: ViewportSize = {"width": 1120, "height": 838}


def take(url: str, picture: Path) -> None:
    """Photograph the overview of the Lethe at `url`."""
    with sync_playwright() as playwright:
        browser = shutil.which("chromium") or shutil.which("chromium-browser")
        # Chromium's sandbox does not run as root.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        running = playwright.chromium.launch(executable_path=browser, args=flags)
        page = running.new_page(viewport=SIZE, color_scheme="light")
        page.goto(f"{url}/dashboard")
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Sign out").wait_for()
        page.locator("canvas").first.wait_for()
        page.screenshot(path=picture)
        running.close()
    # 64 colours suffice for a page of text, and reduce the file to a third.
    Image.open(picture).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(picture, optimize=True)


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        home, model = Path(folder) / "home", Path(folder) / "model"
        train = [sys.executable, "-m", "service.cli", "train", "--dataset", "cora", "--canaries", "12"]
        subprocess.run([*train, "--out", str(model)], check=True)
        lethe = LetheProcess(home, {"LETHE_MODEL": str(model)})
        try:
            with lethe.client() as client:
                for number, nodes in enumerate(NODES):
                    client.wait(client.request_deletion(nodes, reference=f"DSR-{17 + number}").id)
                client.wait_for_drill(client.run_drill().request_id)
            take(lethe.url, PICTURE)
        finally:
            lethe.stop()


if __name__ == "__main__":
    main()
