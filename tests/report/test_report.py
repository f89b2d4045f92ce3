"""The report: its numbers are those of the run, and a person can read it, in a real browser."""

import json
import re
import shutil
import subprocess
import sys
import zlib
from base64 import b64decode
from collections import Counter
from pathlib import Path

import pytest
from browser import look, open_browser
from safetensors.numpy import save_file

from fedpdm.config import load_config
from fedpdm.errors import UserError
from fedpdm.privacy.accounting import epsilon_of
from fedpdm.privacy.ledger import Ledger
from fedpdm.report import write_report
from fedpdm.report.charts import make_charts
from fedpdm.report.model import view_model
from fedpdm.report.reading import read_folders
from fedpdm.report.words import guarantee
from fedpdm.runs.folder import read_about, read_models
from fedpdm.runs.integrity import SUMS, sums_of
from fedpdm.training import train as train_run

SMALL = ["data.name=digits", "data.clients=10", "rounds.participants=4", "rounds.total=6", "metrics.diagnose_every=2"]
PAPER = ["privacy.mechanism=paper", "privacy.epsilon=1.0", "local.steps=5"]
CLAIMS = Path(__file__).parents[2] / "docs" / "results" / "paper"


def train(path: Path, preset: str, settings: list[str]) -> Path:
    return train_run(load_config(preset, [*SMALL, *settings]), path).folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run under the sound mechanism, one under the paper's."""
    folder = tmp_path_factory.mktemp("runs")
    pixels = ["data.features=raw", "data.scaling=blurred"]
    return train(folder / "sound", "demo", pixels), train(folder / "published", "plain", PAPER)


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    return write_report([*runs, CLAIMS], tmp_path_factory.mktemp("pages") / "all.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


# Words of the report


def test_epsilon_by_round_is_what_the_ledger_holds(runs):
    (read,), _ = read_folders(runs[:1])
    assert read.spending is not None
    worst = read.spending.worst
    assert worst == sorted(worst)
    assert worst[-1] == pytest.approx(read.summary["epsilon"], rel=1e-9)
    with Ledger(runs[0] / "ledger.sqlite") as ledger:
        early = Counter(row.client for row in ledger.rows() if row.round < 2)
    terms = read.summary["delta"], read.summary["relation"]
    assert worst[1] == pytest.approx(epsilon_of(read.summary["noise_multiplier"], max(early.values()), *terms), rel=1e-9)


def test_a_guarantee_is_quoted_with_its_terms_and_a_nominal_figure_never_is_one(runs):
    sound, published = read_folders(runs)[0]
    said = guarantee(sound)
    assert said.state == "proven"
    assert said.simulated
    for words in ("epsilon = 1 ", "delta = 1e-05", "one example of one client", "add-remove", "against the server"):
        assert words in said.sentence
    warned = guarantee(published)
    assert warned.state == "nominal"
    assert "not a guarantee" in warned.title
    assert published.spending is None
    assert [c.id for c in make_charts([published])] == ["accuracy", "objective", "bytes", "nonzeros", "stationarity"]


def test_the_page_needs_nothing_from_anywhere(page):
    text = page.read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert set(re.findall(r"https?://[^\"'\s<)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in text


def test_weight_images_are_the_model(runs, page):
    uri = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="Weights of class 0', page.read_text())[0]
    png = b64decode(uri)
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
    assert (width, height) == (8, 8)
    start = png.index(b"IDAT") + 4
    lines = zlib.decompress(png[start : start + int.from_bytes(png[start - 8 : start - 4])])
    pixels = [lines[1 + 33 * y + 4 * x : 5 + 33 * y + 4 * x] for y in range(8) for x in range(8)]
    model = read_folders(runs[:1])[0][0].model
    for weight, (red, _, blue, opaque) in zip(model[0, :64], pixels, strict=True):
        assert (blue > red) == (weight > 0) or opaque == 0


@pytest.mark.parametrize("basis", ["none", "auto"])
def test_behind_wavelets_the_weights_on_the_smoothed_image_are_pictured(tmp_path, basis):
    settings = ["data.scattering_scale=1", "rounds.total=2", f"data.basis={basis}"]
    run = read_folders([train(tmp_path / "run", "demo", settings)])[0][0]
    view = view_model(run)
    assert [image["name"] for image in view.images] == [str(digit) for digit in range(10)]
    assert "of 16 pixels" in view.images[0]["alt"]
    assert "made-up pen strokes" in view.features
    assert "Pictured: the 16 weights on the smoothed image" in view.features


def seal(folder):
    """Make the sums of a run fit its files again, as somebody who writes a run by hand would."""
    (folder / SUMS).write_bytes(
        sums_of(folder, [path.name for path in folder.iterdir() if path.is_file() and path.name != SUMS])
    )


def test_names_from_a_table_cannot_become_markup(runs, tmp_path):
    copy = tmp_path / "evil"
    shutil.copytree(runs[0], copy)
    about = read_about(copy)
    about["class_names"][0] = about["feature_names"][0] = "</script><script>alert(1)</script>"
    save_file(read_models(copy), copy / "model.safetensors", {"fedpdm": json.dumps(about)})
    seal(copy)
    assert "<script>alert(1)" not in write_report([copy]).read_text()


def test_a_folder_without_client_data_still_has_a_report(runs, tmp_path):
    copy = tmp_path / "deployed"
    shutil.copytree(runs[1], copy)
    (copy / "clients.json").unlink()
    seal(copy)
    assert "no data about single clients" in write_report([copy]).read_text()


def test_the_rounds_are_those_that_were_run_and_the_model_is_named(tmp_path):
    settings = ["data.name=sklearn:wine", "metrics.released=averaged", "rounds.tolerance=1e-3"]
    done = train_run(load_config("table", settings), tmp_path / "early")
    page = (done.folder / "report.html").read_text()
    assert done.summary["rounds"] < load_config("table", []).rounds.total
    assert f"trained it in {done.summary['rounds']} rounds" in page
    assert "The largest coefficients of the averaged model" in page
    assert f"<dd>{done.summary['test_accuracy_averaged']:.4f}</dd>" in page
    assert f"{done.summary['test_accuracy']:.4f} of the last model" in page


def test_with_a_threshold_the_accuracy_is_that_of_the_threshold(tmp_path):
    settings = ["data.name=sklearn:breast_cancer", "metrics.threshold=0.95", "rounds.tolerance=1e-3"]
    done = train_run(load_config("table", settings), tmp_path / "strict")
    found = done.summary["metrics"]["accuracy"]["value"]
    assert f"{found:.4f}" != f"{done.summary['test_accuracy']:.4f}"
    page = (done.folder / "report.html").read_text()
    assert f"<dd>{found:.4f}</dd>" in page
    assert f"{done.summary['test_accuracy']:.4f} by naming the more likely class" in page


def test_a_model_of_another_kind_is_told_in_words(runs, tmp_path):
    copy = tmp_path / "own"
    shutil.copytree(runs[0], copy)
    save_file({name: model.ravel() for name, model in read_models(copy).items()}, copy / "model.safetensors", {"fedpdm": "{}"})
    seal(copy)
    assert "A custom model: 650 parameters" in write_report([copy]).read_text()


def test_further_studies_bring_their_verdicts_and_how_they_are_found(tmp_path):
    found = {
        "id": "raw-1",
        "claim": "epsilon 1: FedPDM is first",
        "check": "",
        "effect": 0.01,
        "interval": None,
        "verdict": "holds",
    }
    (tmp_path / "certified.json").write_text(json.dumps([found]))
    text = write_report([tmp_path]).read_text()
    assert "epsilon 1: FedPDM is first" in text
    assert "fedpdm reproduce certified" in text
    assert "the best of the others" in text


def test_several_runs_leave_the_report_of_each_alone(runs, tmp_path, monkeypatch):
    before = write_report([runs[0]]).read_text()
    monkeypatch.chdir(tmp_path)
    assert write_report(runs) == Path("report.html")
    assert (runs[0] / "report.html").read_text() == before


def test_mistakes_are_named(runs, tmp_path):
    with pytest.raises(UserError, match="neither a run"):
        write_report([tmp_path])
    half = tmp_path / "half"
    shutil.copytree(runs[0], half)
    (half / "summary.json").unlink()
    with pytest.raises(UserError, match=r"not complete.*--resume"):
        write_report([half])
    with pytest.raises(UserError, match="at most 8"):
        write_report([runs[0]] * 9)
    with pytest.raises(UserError, match="cannot be written"):
        write_report([runs[0]], Path("/proc/report.html"))


def test_the_command_says_where_the_report_is(runs, tmp_path):
    out = tmp_path / "new" / "page.html"
    command = [sys.executable, "-m", "fedpdm.cli.main", "report", *map(str, runs), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.stdout == f"Report: {out}\n", done.stderr
    assert "sound, published" in out.read_text()


# Appearance of the report


def visible(browser) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll('[role=tabpanel]')].filter(p => p.offsetHeight).map(p => p.id)"
    )


def test_it_loads_without_complaint_and_the_charts_draw(browser, page, runs):
    look(browser, page)
    assert visible(browser) == ["panel-overview"]
    browser.find_element("id", "tab-curves").click()
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.chart')].map(c => [c.dataset.chart, "
        "[...c.querySelectorAll('path.curve')].map(p => [p.getTotalLength(), p.getBBox().width])])"
    )
    assert [name for name, _ in drawn] == ["accuracy", "objective", "epsilon", "bytes", "nonzeros", "stationarity"]
    assert [len(curves) for _, curves in drawn] == [2, 2, 1, 4, 2, 2]
    assert all(length > 50 and width > 50 for _, curves in drawn for length, width in curves)
    assert browser.execute_script("return document.querySelector('.chart svg').getAttribute('aria-label')").startswith("Test")
    look(browser, write_report([runs[0]], page.parent / "one.html"))
    assert browser.get_log("browser") == []


def test_tabs_by_click_and_by_keyboard(browser, page):
    from selenium.webdriver import Keys

    look(browser, page)
    tabs = browser.find_elements("css selector", "[role=tab]")
    for tab in tabs:
        tab.click()
        assert visible(browser) == [tab.get_attribute("aria-controls")]
        assert tab.get_attribute("aria-selected") == "true"
    tabs[0].click()
    for key, expected in ((Keys.ARROW_RIGHT, 1), (Keys.END, 6), (Keys.ARROW_RIGHT, 0), (Keys.ARROW_LEFT, 6), (Keys.HOME, 0)):
        browser.switch_to.active_element.send_keys(key)
        assert visible(browser) == [tabs[expected].get_attribute("aria-controls")]
        assert browser.switch_to.active_element == tabs[expected]
    outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_pointing_at_a_curve_tells_its_value(browser, page, runs):
    from selenium.webdriver import ActionChains, Keys

    look(browser, page)
    browser.find_element("id", "tab-curves").click()
    plot = browser.find_element("css selector", "[data-chart=accuracy] .plot")
    ActionChains(browser).move_to_element_with_offset(plot, plot.size["width"] // 2 - 15, 0).perform()
    measured = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    tip = plot.find_element("css selector", ".tip").text
    assert "Round 6" in tip
    assert f"sound {measured[5]['test_accuracy']:.4f}" in tip
    browser.execute_script("arguments[0].focus()", plot)
    plot.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    assert f"sound {measured[1]['test_accuracy']:.4f}" in plot.find_element("css selector", ".tip").text
    heard = browser.execute_script("return document.querySelector('[data-chart=accuracy] [aria-live]').textContent")
    assert heard.startswith("Round 2: sound")


def test_sorting_and_filtering(browser, page):
    look(browser, page)
    browser.find_element("id", "tab-clients").click()
    head = browser.find_element("css selector", "#panel-clients .sortable th:nth-child(3) button")
    head.click()
    column = "return [...document.querySelector('.sortable').tBodies[0].rows].map(r => Number(r.cells[2].dataset.value))"
    assert (rising := browser.execute_script(column)) == sorted(rising)
    head.click()
    assert browser.execute_script(column) == sorted(rising, reverse=True)
    browser.find_element("id", "tab-claims").click()
    browser.find_element("css selector", "[data-filter='does not hold']").click()
    rows = browser.execute_script(
        "return [...document.querySelector('.claims').tBodies[0].rows].filter(r => r.offsetHeight).map(r => r.dataset.verdict)"
    )
    claims = json.loads((CLAIMS / "claims.json").read_text())
    assert len(rows) == sum(claim["verdict"] == "does not hold" for claim in claims)
    assert set(rows) == {"does not hold"}


@pytest.mark.parametrize("width", [390, 1200])
def test_no_sideways_scrolling(browser, page, width):
    look(browser, page, width)
    for tab in browser.find_elements("css selector", "[role=tab]"):
        tab.click()
        for folded in browser.find_elements("css selector", "details"):
            browser.execute_script("arguments[0].open = true", folded)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, tab.text


def test_dark_when_the_reader_wants_dark_and_everything_on_paper(browser, page):
    colours = []
    for scheme in ("light", "dark"):
        look(browser, page, scheme=scheme)
        colours.append(browser.execute_script("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"))
    brightness = [[sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in pair] for pair in colours]
    assert brightness[0][0] > 700 > brightness[0][1]
    assert brightness[1][0] < 100 < brightness[1][1]
    look(browser, page, media="print")
    assert len(visible(browser)) == 7
