# Copyright (c) mmib contributors. All rights reserved.
"""What a real browser makes of pages."""
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which('chromium') or shutil.which('google-chrome')
OPTIONS = ('--headless', '--no-sandbox', '--disable-gpu', '--disable-quic',
           '--no-first-run', '--disable-background-networking',
           '--disable-component-update', '--disable-sync',
           '--disable-dev-shm-usage')
# Of frames: a wide screen and a phone.
WIDTHS = (1280, 400)
PROBE = """<!DOCTYPE html><title>probe</title>
%s
<pre id="found"></pre>
<script>
onload = () => {
  const found = {};
  for (const frame of document.querySelectorAll('iframe')) {
    const page = frame.contentDocument;
    const images = [...page.images];
    found[frame.name] = {
      text: page.body.innerText,
      images: images.length,
      broken: images.filter(image => !image.naturalWidth).length,
      pictures: page.querySelectorAll('.card').length,
      scripts: page.scripts.length,
      overflow: page.documentElement.scrollWidth > frame.clientWidth,
      requests: frame.contentWindow.performance
        .getEntriesByType('resource').map(entry => entry.name)
        .filter(name => !name.startsWith('data:')),
    };
  }
  document.getElementById('found').textContent = JSON.stringify(found);
};
</script>"""


def look_at(pages, folder):
    """Open pages from disk, each on a wide screen and on a phone.

    Args:
        pages (dict[str, Path]): Paths by name.
        folder (Path): Where files may be written.

    Returns:
        tuple[dict, list[str]]: What was found, by name and width; and errors
        of the browser's console.
    """
    frames = '\n'.join(
        f'<iframe name="{name} {width}" width="{width}" height="900" '
        f'style="border: 0" src="{Path(path).resolve().as_uri()}"></iframe>'
        for name, path in pages.items() for width in WIDTHS)
    probe = folder / 'probe.html'
    probe.write_text(PROBE % frames)
    result = subprocess.run([
        CHROMIUM, *OPTIONS, '--allow-file-access-from-files',
        f'--user-data-dir={folder / "profile"}', '--enable-logging=stderr',
        '--dump-dom',
        probe.as_uri()
    ],
                            capture_output=True,
                            text=True,
                            timeout=300)
    found = re.search(r'<pre id="found">(.*?)</pre>', result.stdout, re.S)
    errors = [line for line in result.stderr.splitlines() if 'CONSOLE' in line]
    assert found and found[1], result.stderr[-3000:]
    return json.loads(html.unescape(found[1])), errors
