#!/usr/bin/env python3
"""HTML pages in a real headless browser: the console has no errors, no plot is empty, and text is readable on phone and
desktop screens, in light and dark mode. Skipped without Chromium or Chrome."""
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import rig

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
                if (found := shutil.which(name))), None)

# The test adds this script to a page; it measures what a reader sees.
PROBE = """<script>
//<![CDATA[
const faults = [], said = [];
window.addEventListener('error', event => faults.push('error: ' + event.message));
function luminance(colour) {
  const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(a, b) {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}
function behind(element) {
  for (; element; element = element.parentElement) {
    const colour = getComputedStyle(element).backgroundColor;
    if (!/, 0\\)$|transparent/.test(colour)) return colour;
  }
  return 'rgb(255, 255, 255)';
}
for (const svg of document.querySelectorAll('svg')) {
  const title = svg.querySelector('title').textContent, here = svg.getBoundingClientRect();
  const drawn = [...svg.querySelectorAll('path, circle, rect')].filter(shape => {
    const box = shape.getBoundingClientRect(), style = getComputedStyle(shape);
    const colour = shape.tagName === 'path' ? style.stroke : style.fill;
    const inside = box.right > here.left && box.left < here.right && box.bottom > here.top && box.top < here.bottom;
    return inside && box.width + box.height > 0 && colour !== 'none' && contrast(colour, behind(svg)) >= 1.9;
  });
  if (!drawn.length || svg.textContent.includes('no data')) faults.push('empty plot: ' + title);
  if (here.width < 200 || here.height < 40) faults.push(`plot of ${here.width} x ${here.height}: ${title}`);
  said.push(title);
  for (const text of svg.querySelectorAll('text')) {
    const box = text.getBoundingClientRect();
    const size = parseFloat(getComputedStyle(text).fontSize) * here.width / svg.viewBox.baseVal.width;
    if (size < 9.5) faults.push(`text of ${size} pixels in ${title}`);
    if (box.left < here.left - 2 || box.right > here.right + 2) faults.push(`"${text.textContent}" is cut in ${title}`);
    if (contrast(getComputedStyle(text).fill, behind(svg)) < 4) faults.push(`faint: "${text.textContent}" in ${title}`);
  }
}
for (const element of document.querySelectorAll('h1, h2, p, dt, dd, th, td, pre, li, summary, footer')) {
  const style = getComputedStyle(element);
  if (!element.textContent.trim() || !element.getClientRects().length) continue;
  if (parseFloat(style.fontSize) < 11.5) faults.push(`${style.fontSize}: ${element.textContent}`);
  if (contrast(style.color, behind(element)) < 4) faults.push(`faint: ${element.textContent}`);
}
if (document.body.scrollWidth > document.body.clientWidth)
  faults.push(`the page is ${document.body.scrollWidth} pixels wide on a screen of ${document.body.clientWidth}`);
const probe = document.createElement('pre');
probe.id = 'probe';
probe.textContent = JSON.stringify({faults, plots: said, background: getComputedStyle(document.body).backgroundColor, width: innerWidth});
document.body.append(probe);
//]]>
</script>"""

# Chromium's windows are at least 500 wide; look() limits the phone's page to 390.
SCREENS = {"phone": "500,900", "desk": "1400,1000"}


@unittest.skipIf(BROWSER is None, "neither Chromium nor Chrome is installed")
class Pages(rig.Runs):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pages = pathlib.Path(tempfile.mkdtemp(prefix="trainer-pages-"))
        cls.addClassCleanup(shutil.rmtree, cls.pages)

    def look(self, page, screen="desk", dark=False):
        """Returns the probe's measurements of a page."""
        text = page.read_text()
        if screen == "phone":
            text = text.replace("<body>", '<body style="width: 390px">')
        probed = self.folder / "probed.html"
        self.assertIn("</body>", text)
        probed.write_text(text.replace("</body>", PROBE + "</body>"))
        with tempfile.TemporaryDirectory() as profile:
            result = subprocess.run(
                [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
                 "--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=2000", f"--user-data-dir={profile}",
                 f"--window-size={SCREENS[screen]}", f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom",
                 probed.as_uri()], capture_output=True, text=True, errors="replace", timeout=rig.TIMEOUT_SECONDS)
        self.assertEqual(result.returncode, 0, result.stderr)
        console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
        self.assertEqual(console, [])
        found = re.search(r'<pre id="probe">(.*?)</pre>', result.stdout, re.S)
        self.assertTrue(found, result.stdout[-2000:] + result.stderr[-2000:])
        seen = json.loads(found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
        self.assertEqual(seen["faults"], [], f"{page.name} on a {screen}, {'dark' if dark else 'light'}")
        return seen

    def check(self, page, plots):
        backgrounds = set()
        for dark in (False, True):
            for screen in SCREENS:
                with self.subTest(page=page.name, screen=screen, dark=dark):
                    seen = self.look(page, screen, dark)
                    self.assertLessEqual(plots, set(seen["plots"]))
                    backgrounds.add(seen["background"])
        self.assertEqual(len(backgrounds), 2)  # light and dark mode differ

    def test_reports_and_comparisons(self):
        self.train("log.report=true", "checkpoint.interval=3", "train.sample_tokens=8", "train.sample_prompt=the", max_steps=4)
        self.train("log.report=true", "checkpoint.interval=3", "train.sample_tokens=8", "train.sample_prompt=the")
        self.check(self.folder / "run/report.html", {"Loss", "Tokens per second", "Time of a step", "Timeline",
                                                     "Peak memory by category"})
        self.train_on(2, "run.dir=two", "log.report=true", "parallel.tensor=2", "train.global_batch=8", "optim.lr=3e-4")
        self.trainer("report", "run", "two", "--output", "both.html")
        self.check(self.folder / "both.html", {"Training loss", "Training loss over the tokens seen", "Validation loss",
                                               "Tokens per second", "Learning rate"})

    def test_sections_of_offload_and_of_the_prediction(self):
        self.train("offload.optimizer=interleaved", "offload.gpu_fraction=1/2", "offload.subgroup=1024", "offload.slots=2",
                   "parallel.transport=threads", "parallel.data=2")
        log = self.folder / "run/metrics.jsonl"
        start, *others = log.read_text().splitlines()
        start = json.loads(start)
        start["predicted"] |= {"step_ms": 12.5, "wait_ms": 1.5}  # as a run with hardware.profile logs them
        log.write_text("\n".join([json.dumps(start), *others]) + "\n")
        self.trainer("report", "run")
        page = self.folder / "run/report.html"
        for heading in ("Predicted and measured", "Communication by axis", "Optimizer offload"):
            self.assertIn(f"<h2>{heading}</h2>", page.read_text())
        self.check(page, {"Updates, ms/step", "Timeline"})

    def test_the_probe_sees_what_is_wrong(self):
        """Damages a good page in several ways; the probe must report each."""
        self.train("log.report=true", max_steps=3)
        page = self.folder / "run/report.html"
        good = page.read_text()
        for damage, message in (((r'(<path class="s0[^>]*) d="[^"]*"', r'\1 d=""'), "empty plot: Tokens per second"),
                                (("<main>", '<main><p style="width: 2000px">wide</p>'), "the page is"),
                                (("--ink: #1b2430", "--ink: #e8e8e8"), "faint")):
            bad = re.sub(*damage, good)
            self.assertNotEqual(bad, good)
            page.write_text(bad)
            with self.assertRaisesRegex(AssertionError, message):
                self.look(page)


if __name__ == "__main__":
    rig.main()
