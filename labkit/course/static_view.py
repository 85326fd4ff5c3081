"""What a built notebook shows where nothing is run: on GitHub, and in a Jupyter that does not trust its scripts.

Execution counts as of a run from top to bottom. The outputs behind a question are collapsed; JupyterLab shows the first
line of a collapsed output, so a caption comes before the answer. In place of a player, which needs scripts, a picture
of it, and how to play it. The captions are for the notebook alone: the site leaves them out, and has the player.
"""

from __future__ import annotations

import base64
import html
import io
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from labkit.course import predictions
from labkit.course.notebooks import import_nbformat
from labkit.course.registry import Chapter

PLAYER = "application/vnd.labkit.player+html"
_CAPTION = {"labkit": {"caption": True}}
_DOCUMENT = re.compile(r"<iframe class='labkit-player'.*?srcdoc='(.*?)'></iframe>", re.DOTALL)
_HALFWAY = """<script>addEventListener("load", () => {
  const time = document.getElementById("time");
  time.value = Math.round(time.max / 2);
  time.dispatchEvent(new Event("input"));
});</script>"""


def prepare(notebook, chapter: Chapter, repository: str = "") -> None:
    """Prepare a lesson's executed notebook for readers, in place."""
    count = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        count += 1
        cell["execution_count"] = count
        outputs = []
        for output in cell.outputs:
            if is_caption(output):
                continue
            if output.output_type == "execute_result":
                output["execution_count"] = count
            outputs.append(output)
            if _DOCUMENT.search(output.get("data", {}).get("text/html", "")):
                _picture_in_place_of(output["data"])
            if PLAYER in output.get("data", {}):
                outputs.append(_caption(_how_to_play(chapter, repository), "text/markdown"))
        if predictions.kind(cell) == predictions.RESULT and outputs:
            cell.metadata["jupyter"] = {**cell.metadata.get("jupyter", {}), "outputs_hidden": True}
            outputs.insert(0, _caption("The result:"))
        cell["outputs"] = outputs


def is_caption(output) -> bool:
    return output.get("metadata", {}).get("labkit") == _CAPTION["labkit"]


def was_run_since(path: Path) -> bool:
    """Whether somebody has run the notebook: whatever runs one notes its kernel's language, which the build does not.
    Most were not, and to look at the bytes takes a hundredth of the time."""
    try:
        return b'"pygments_lexer"' in path.read_bytes()
    except OSError:
        return False


def _caption(text: str, mime: str = "text/plain"):
    import_nbformat()
    from nbformat.v4 import new_output

    return new_output("display_data", data={mime: text}, metadata=_CAPTION)


def _how_to_play(chapter: Chapter, repository: str) -> str:
    page = f"{chapter.name}.html"
    owner, _, name = repository.removeprefix("https://github.com/").partition("/")
    site = f"[on the course's site](https://{owner}.github.io/{name}/{page})" if name else (
        f"on the course's site: `labkit site`, `build/site/{page}`")
    return f"*This is a picture. The player plays where the cell is run, and {site}.*"


# --- A player's picture ----------------------------------------------------------------------------------------------


def _picture_in_place_of(data: dict) -> None:
    """Keep a player's page for the site, and show its picture, or its text where no browser can take one."""
    data[PLAYER] = data.pop("text/html")
    if picture := _picture(html.unescape(_DOCUMENT.search(data[PLAYER])[1])):
        data["image/png"] = base64.b64encode(picture).decode()


def _picture(page: str, width: int = 960, height: int = 1000) -> bytes | None:
    """The player's page at half of its steps, as a PNG of few colours. None where there is no Chromium."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        return None
    from PIL import Image, ImageChops

    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        source, target = Path(folder) / "player.html", Path(folder) / "player.png"
        source.write_text(page + _HALFWAY, encoding="utf-8")
        as_root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        subprocess.run([browser, "--headless", "--disable-gpu", "--hide-scrollbars", *as_root,
                        f"--user-data-dir={folder}/profile", f"--window-size={width},{height}",
                        f"--screenshot={target}", source.as_uri()], capture_output=True, timeout=120, check=False)
        if not target.is_file():
            return None
        image = Image.open(target).convert("RGB")
        empty = Image.new("RGB", image.size, image.getpixel((width - 1, height - 1)))
        left_top_right_bottom = ImageChops.difference(image, empty).getbbox() or (0, 0, width, height)
        file = io.BytesIO()
        image.crop((0, 0, width, left_top_right_bottom[3])).quantize(128).save(file, "PNG", optimize=True)
        return file.getvalue()
