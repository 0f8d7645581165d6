"""The page in a real browser: it draws, answers, and runs nothing that came with the data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.browser import chromium, look, missing, open_page
from benchmarks.pages import made_up_committee, made_up_findings, made_up_maps, made_up_page, made_up_tables
from h3gnn.report.findings import Category, Findings, Measure, OtherRun
from h3gnn.report.page import render_page

SIZES = (100, pytest.param(10_000, marks=pytest.mark.slow), 50_000)
NASTY = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    need_browser(missing(), in_ci=bool(os.environ.get("CI")))
    with chromium() as driver:
        yield driver


def need_browser(absent: str, *, in_ci: bool) -> None:
    """Skip where there is no browser; in CI that is a failure."""
    if absent and not in_ci:
        pytest.skip(f"no browser to test the page in: {absent}")
    assert not absent, f"CI has to test the page in a browser: {absent}"


def test_a_missing_browser_skips_but_never_in_ci() -> None:
    with pytest.raises(pytest.skip.Exception, match="no browser to test the page in: chromium"):
        need_browser("chromium", in_ci=False)
    with pytest.raises(AssertionError, match="CI has to test the page in a browser: chromium"):
        need_browser("chromium", in_ci=True)
    need_browser("", in_ci=True)


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    folder, pages = tmp_path_factory.mktemp("pages"), {}

    def page(nodes: int) -> Path:
        if nodes not in pages:
            pages[nodes] = folder / f"{nodes}.html"
            pages[nodes].write_text(made_up_page(nodes))
        return pages[nodes]

    return page


def show(browser: Any, path: Path, **window: Any) -> None:
    look(browser, **window)
    browser.get_log("browser")
    open_page(browser, path)


def show_findings(browser: Any, folder: Path, findings: Findings, maps: Any = None) -> None:
    (folder / "page.html").write_text(render_page(findings, maps or made_up_maps(findings)))
    show(browser, folder / "page.html")


def text(browser: Any, selector: str) -> str:
    found: str = browser.execute_script("return document.querySelector(arguments[0]).innerText", selector)
    return found


def settle(browser: Any) -> None:
    """Wait for the next two frames."""
    browser.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
    )


def position(browser: Any, node: int, which: int = 0) -> tuple[float, float]:
    place = browser.execute_script("return report.position(arguments[0], arguments[1])", which, node)
    return place["x"], place["y"]


def pointer(browser: Any, *moves: tuple[str, float, float]) -> None:
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    builder: Any = ActionBuilder(browser, duration=0)
    for what, x, y in moves:
        builder.pointer_action.move_to_location(round(x), round(y))
        if what != "move":
            getattr(builder.pointer_action, f"pointer_{what}")()
    builder.perform()
    settle(browser)


def colours(browser: Any, which: int = 0) -> dict[int, int]:
    """How often each colour is drawn in a map."""
    counted: list[list[int]] = browser.execute_script(
        """const map = report.maps[arguments[0]], canvas = map.canvas;
        const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const counts = new Map();
        for (const one of new Uint32Array(image.data.buffer)) counts.set(one, (counts.get(one) ?? 0) + 1);
        return [...counts].sort((a, b) => b[1] - a[1]).slice(0, 400)""",
        which,
    )
    return {one[0]: one[1] for one in counted}


def no_errors(browser: Any) -> None:
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def fully_clear(maps: np.ndarray) -> int:
    """The node that lies farthest from all others, so that a pointer on it means no other."""
    from scipy.spatial import cKDTree

    distance, _ = cKDTree(maps).query(maps, k=[2])
    return int(np.argmax(distance))


@pytest.mark.parametrize("nodes", SIZES)
def test_the_page_draws_and_answers(browser: Any, page_of: Callable[[int], Path], nodes: int) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    show(browser, page_of(nodes))
    assert browser.execute_script("return performance.getEntriesByName('map-drawn')[0].startTime") < 3000
    for which in (0, 1):
        drawn = colours(browser, which)
        assert len(drawn) > 5, "the map is blank"
        paper = max(drawn.values())
        pixels = browser.execute_script(f"return report.maps[{which}].layer.pixels.length")
        assert 1 - paper / pixels > 0.01

    node = fully_clear(made_up_maps(made_up_findings(nodes))["H3GNN embedding"])
    pointer(browser, ("move", *position(browser, node)))
    assert not browser.execute_script("return document.getElementById('tip').hidden")
    assert f"node-{node}\n" in text(browser, "#tip")
    assert "local homophily" in text(browser, "#tip")
    assert browser.execute_script("return report.state.hovered") == node

    before = colours(browser)
    Select(browser.find_element("id", "colour")).select_by_visible_text("difficulty, last epoch")
    settle(browser)
    assert colours(browser) != before
    assert browser.find_elements("css selector", "#legend .histogram span")

    field = browser.find_element("id", "search")
    field.send_keys(f"NODE-{nodes - 1}", Keys.ENTER)
    settle(browser)
    assert text(browser, "#node h3") == f"node-{nodes - 1}"
    assert len(browser.find_elements("css selector", "#node .nodes li")) == 6 + 6
    no_errors(browser)


@pytest.mark.parametrize("nodes", SIZES)
def test_lasso_and_download(browser: Any, page_of: Callable[[int], Path], nodes: int) -> None:
    show(browser, page_of(nodes))
    maps = made_up_maps(made_up_findings(nodes))["H3GNN embedding"]
    browser.execute_script("document.querySelector('input[value=lasso]').click()")
    box = browser.execute_script("return report.maps[0].overlay.getBoundingClientRect().toJSON()")
    left, top = round(box["left"] + box["width"] / 2), round(box["top"] + 4)
    right, bottom = round(box["right"] - 4), round(box["bottom"] - 4)
    corners = [(right, top), (right, bottom), (left, bottom), (left, top)]
    pointer(browser, ("down", left, top), *(("move", *corner) for corner in corners), ("up", left, top))

    chosen = set(browser.execute_script("return [...report.state.selected]"))
    wanted = set(np.flatnonzero(maps[:, 0] > 0).tolist())
    assert len(chosen ^ wanted) <= 0.01 * nodes  # a pixel's width around the border
    assert text(browser, "#selected").startswith(f"{len(chosen):,} nodes selected")

    for old in browser.downloads.iterdir():
        old.unlink()
    browser.find_element("id", "download").click()
    saved = browser.downloads / "selected-nodes.txt"
    limit = time.monotonic() + 5
    while not saved.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    assert saved.read_text().split() == [f"node-{node}" for node in sorted(chosen)]
    browser.find_element("id", "clear").click()
    assert text(browser, "#selected") == "No nodes selected."
    no_errors(browser)


def test_linked_and_unlinked_maps_move_and_zoom(browser: Any, page_of: Callable[[int], Path]) -> None:
    show(browser, page_of(100))
    start = [position(browser, 7, which) for which in (0, 1)]
    x, y = start[0]
    pointer(browser, ("down", x + 30, y), ("move", x + 60, y + 10), ("up", x + 70, y + 20))
    for which in (0, 1):
        assert np.allclose(np.subtract(position(browser, 7, which), start[which]), (40, 20), atol=1.5)
    browser.find_element("id", "linked").click()
    settled = position(browser, 7, 1)
    browser.execute_script("report.maps[0].overlay.focus()")
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys("+").perform()
    settle(browser)
    assert browser.execute_script("return report.maps.map((map) => map.view.zoom)") == [1.3, 1]
    assert position(browser, 7, 1) == settled
    browser.find_element("id", "reset").click()
    assert position(browser, 7, 0) == pytest.approx(start[0])


def test_the_page_can_be_used_by_keyboard(browser: Any, page_of: Callable[[int], Path]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    show(browser, page_of(100))
    browser.execute_script("report.maps[0].overlay.focus()")
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER).perform()
    settle(browser)
    chosen = browser.execute_script("return report.state.chosen")
    assert text(browser, "#node h3") == f"node-{chosen}"
    browser.execute_script("document.querySelector('#node .nodes button').focus()")
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    settle(browser)
    assert browser.execute_script("return report.state.chosen") != chosen
    browser.execute_script("document.querySelector('#legend button').focus()")
    ActionChains(browser).send_keys(Keys.SPACE).perform()
    settle(browser)
    shown = browser.execute_script("return report.state.look.order.length - report.state.look.dimmed")
    assert shown == (made_up_findings(100).categories[0].values == 0).sum()
    browser.execute_script("report.maps[0].overlay.focus()")
    ActionChains(browser).send_keys("0", Keys.ESCAPE).perform()
    assert browser.execute_script("return report.state.chosen") == -1
    browser.find_element("id", "select-view").send_keys(Keys.ENTER)
    assert browser.execute_script("return report.state.selected.size") == shown
    no_errors(browser)


def test_a_click_shows_the_neighbours_of_a_node(browser: Any, page_of: Callable[[int], Path]) -> None:
    show(browser, page_of(100))
    findings = made_up_findings(100)
    node = fully_clear(made_up_maps(findings)["H3GNN embedding"])
    x, y = position(browser, node)
    pointer(browser, ("down", x, y), ("up", x, y))
    assert text(browser, "#node h3") == f"node-{node}"
    assert findings.neighbors is not None
    mine = slice(findings.neighbors.crow[node], findings.neighbors.crow[node + 1])
    change = findings.neighbors.weight[mine] / findings.neighbors.start[mine] - 1
    assert f"{(change < 0).sum()} decreased" in text(browser, "#node")
    listed = [one.text for one in browser.find_elements("css selector", "#node .change")]
    signs = [("▼ −" if one < 0 else "▲ +", abs(100 * one)) for one in -np.sort(-change)]
    assert listed == [f"{sign}{size:.1f} %" for sign, size in signs]


def nasty_findings() -> Findings:
    findings = made_up_findings(100)
    classes = findings.categories[0]
    named = replace(classes, names=(NASTY, *classes.names[1:]))
    provenance = {"source": NASTY, "sha256": "", "repairs": [{"code": "x", "message": NASTY}]}
    run = replace(findings.run, provenance=provenance, settings={"a": NASTY})
    assert findings.scores is not None
    scores = replace(findings.scores, class_names=named.names)
    ids = (NASTY, "{{script}}", *findings.ids[2:])
    return replace(findings, title=NASTY, ids=ids, categories=(named,), run=run, scores=scores)


def test_markup_in_names_is_shown_and_not_run(browser: Any, tmp_path: Path) -> None:
    show_findings(browser, tmp_path, nasty_findings())
    field = browser.find_element("id", "search")
    field.send_keys("window.hacked")
    assert text(browser, "#matches") == NASTY
    from selenium.webdriver.common.keys import Keys

    field.send_keys(Keys.ENTER)
    pointer(browser, ("move", *position(browser, 0)))
    assert text(browser, "#node h3") == NASTY
    assert text(browser, "h1") == NASTY
    assert NASTY in text(browser, "#legend")
    assert browser.execute_script("return window.hacked") is None
    no_errors(browser)


def test_without_labels_the_parts_that_need_them_are_absent(browser: Any, tmp_path: Path) -> None:
    findings = made_up_findings(100)
    assert findings.scores is not None
    unlabelled: Any = {"probe": None, "by_class": None, "by_homophily": None}
    unlabelled["clustering"] = {"silhouette": np.array([0.1, 0.2])}
    rows = tuple(replace(row, **unlabelled) for row in findings.scores.rows)
    bare = replace(
        findings,
        categories=findings.categories[3:4],
        measures=findings.measures[1:2],
        attention=None,
        neighbors=None,
        scores=replace(findings.scores, rows=rows, confusion=None),
        run=replace(findings.run, collapsed="The representation collapsed: at epoch 3 …"),
    )
    show_findings(browser, tmp_path, bare, {"H3GNN embedding": made_up_maps(findings)["Raw features"]})
    options = [one.get_attribute("value") for one in browser.find_elements("css selector", "#colour option")]
    assert options == ["cluster", "degree"]
    assert "collapsed" in text(browser, "#banner")
    assert "silhouette" in text(browser, "#scores")
    assert not browser.find_elements("css selector", ".confusion")
    assert len(browser.find_elements("css selector", "canvas.points")) == 1
    no_errors(browser)


def titles(browser: Any, part: str) -> list[str]:
    return [one.text for one in browser.find_elements("css selector", f"{part} h3")]


def test_a_committee_is_shown_by_member(browser: Any, tmp_path: Path) -> None:
    show_findings(browser, tmp_path, made_up_committee(100))
    assert titles(browser, "#history") == [
        "Loss: teacher", "Loss: edges", "Effective rank", "Masked nodes", "Distance of the teacher"
    ]  # fmt: skip
    loss, _, rank, _, distance = browser.find_elements("css selector", "#history .readout")
    assert loss.text == "epoch 99: teacher 0.0105"  # the mean of 1/100 and 1.1/100
    assert rank.text == "epoch 99: teacher 42 · edges 4"
    assert distance.text == "epoch 99: teacher 0.15"  # edges has no teacher
    assert "teacher 0, 1 0.0105 60 60.0 %" in " ".join(text(browser, "#facts").split())
    assert "divided by the sum of all members' ranks" in text(browser, "#facts")
    assert "class 0 40 edges 80.0 % +10.0 % 90.0 %" in " ".join(text(browser, "#scores").split())
    assert "H3GNN: teacher" in text(browser, "#scores table")
    browser.execute_script("report.choose(3)")
    assert "their weights are fixed" in text(browser, "#node")
    assert not browser.find_elements("css selector", "#node .change")
    no_errors(browser)


def test_models_of_one_objective_are_drawn_together(browser: Any, page_of: Callable[[int], Path]) -> None:
    show(browser, page_of(100))
    wanted = ["Loss", "Effective rank", "Masked nodes", "Difficulty of the nodes"]
    assert titles(browser, "#history") == wanted
    assert not browser.find_elements("css selector", "#history .key")
    assert titles(browser, "#facts") == ["Facts", "Settings"]
    assert "Best member by class" not in titles(browser, "#scores")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 820, 1400])
def test_themes_and_widths(browser: Any, page_of: Callable[[int], Path], width: int, dark: bool) -> None:
    show(browser, page_of(100), width=width, height=800, dark=dark)
    settle(browser)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    paper = max(colours(browser).items(), key=lambda one: one[1])[0]
    assert (paper & 0xFF < 64) == dark
    no_errors(browser)


def own_findings() -> Findings:
    """Findings with columns of the user's own, a rare class, and another run."""
    findings = made_up_findings(100)
    nodes = np.arange(100)
    countries = Category("own_country", "country", ("DE", "FR"), np.where(nodes < 10, -1, nodes % 2))
    amount = Measure("own_amount", "amount", np.where(nodes == 0, np.nan, 10.0 * nodes))
    assert findings.scores is not None
    beside = {"average_precision": np.full(10, 0.6), "recall_at_k": np.full(10, 0.5)}
    beside |= {"balanced_accuracy": np.full(10, 0.7), "majority": np.full(10, 0.96)}
    rows = tuple(
        replace(row, secondary=beside, precision=np.linspace(1, 0.04, 51)) for row in findings.scores.rows
    )
    lower = beside | {"average_precision": np.full(10, 0.55)}
    theirs = replace(rows[-1], representation="other run: b", secondary=lower)
    return replace(
        findings,
        categories=(*findings.categories, countries),
        measures=(*findings.measures, amount),
        texts={"name": tuple(f"Customer Nº {node}" for node in nodes)},
        scores=replace(findings.scores, rows=(*rows, theirs), leading="average_precision", rare="fraud"),
        other=OtherRun("other run: b", {"epochs": (50, 20)}, ("the graph: 90 nodes, 400 edges there",)),
    )


def test_a_value_that_the_colours_do_not_show_is_in_the_panel(browser: Any, tmp_path: Path) -> None:
    findings = made_up_findings(20)
    maker = Category("own_maker", "maker", ("A", "other (2)"), np.arange(20) % 2)
    texts = {"maker": tuple("ABAC"[node % 4] for node in range(20))}
    show_findings(browser, tmp_path, replace(findings, categories=(*findings.categories, maker), texts=texts))
    browser.execute_script("report.choose(3)")
    assert "maker\nC\n" in text(browser, "#node")
    assert "other (2)" not in text(browser, "#node")


def choose(browser: Any, field: str, value: str) -> None:
    browser.execute_script(
        "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
        "field.dispatchEvent(new Event('change'))",
        field,
        value,
    )
    settle(browser)


@pytest.fixture
def own_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    show_findings(browser, tmp_path, own_findings())
    yield browser
    no_errors(browser)


def test_own_columns_colour_and_filter_together(own_page: Any) -> None:
    groups = own_page.find_elements("css selector", "#colour optgroup[label='Your columns'] option")
    assert [one.get_attribute("value") for one in groups] == ["own_country", "own_amount"]
    choose(own_page, "colour", "class")
    choose(own_page, "filter", "own_country")
    assert text(own_page, "#passing") == "100 of 100 nodes"
    own_page.find_element("css selector", "#filter-values button").click()
    assert text(own_page, "#passing") == "45 of 100 nodes"
    assert own_page.execute_script("return report.state.look.dimmed") == 55
    choose(own_page, "colour", "own_amount")  # another colour leaves the filter as it is
    assert own_page.execute_script("return report.state.look.dimmed") == 55
    choose(own_page, "filter", "own_amount")
    low, high = own_page.find_elements("css selector", "#filter-values input")
    low.send_keys("100")
    high.send_keys("190")
    assert text(own_page, "#passing") == "10 of 100 nodes"
    choose(own_page, "filter", "")
    assert own_page.execute_script("return report.state.look.dimmed") == 0


def test_texts_and_ids_are_searched(own_page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    field = own_page.find_element("id", "search")
    field.send_keys("customer nº 42")
    assert text(own_page, "#matches").split("\n") == ["node-42", "Customer Nº 42"]
    field.send_keys(Keys.ENTER)
    assert text(own_page, "#node h3") == "node-42"
    assert "name\nCustomer Nº 42\ncountry\nDE" in text(own_page, "#node")


def test_a_rare_class_leads_and_its_curve_is_drawn(own_page: Any) -> None:
    headline = text(own_page, "#headline")
    assert headline.startswith(
        "average precision of fraud\n60.0 ± 0.0 %\nother run: b 55.0 ± 0.0 %\naccuracy\n"
    )
    assert "majority's share 96.0 %" in headline
    assert "Precision and recall of fraud" in titles(own_page, "#scores")
    assert "recall 1: raw features 0.04" in text(own_page, "#scores")
    assert "representation\taverage precision\taccuracy\tbalanced accuracy\trecall at k" in text(
        own_page, "#scores table"
    )
    assert "What differs in other run: b" in titles(own_page, "#scores")
    assert "epochs\t50\t20" in text(own_page, "#scores")
    assert "the graph: 90 nodes" in text(own_page, "#scores")


BARS = """return [...document.querySelectorAll(".paths .stack")].map((one) => [
    one.previousSibling.innerText, one.nextSibling.innerText, one.firstChild.style.background,
    one.firstChild.getBoundingClientRect().width / one.getBoundingClientRect().width])"""
CLIPPED = """return [...document.querySelectorAll("main *")].filter((one) => one.clientWidth
    && getComputedStyle(one).overflowX === "hidden" && one.scrollWidth > one.clientWidth + 1
    && !one.classList.contains("unseen")).map((one) => one.outerHTML)"""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_attention_by_path_has_the_colours_of_types(
    browser: Any, tmp_path: Path, width: int, dark: bool
) -> None:
    findings = made_up_tables(60)
    assert findings.attention is not None
    (tmp_path / "page.html").write_text(render_page(findings, made_up_maps(findings)))
    show(browser, tmp_path / "page.html", width=width, dark=dark)
    found = browser.execute_script(BARS)
    mean = findings.attention.mean(axis=0)
    order = np.argsort(-mean)
    assert [one[0] for one in found] == [findings.tokens[at] for at in order]
    assert [one[1] for one in found] == [f"{100 * mean[at]:.1f} %" for at in order]
    np.testing.assert_allclose([one[3] for one in found], mean[order] / mean.max(), atol=0.02)
    colour = {name: paint for name, _, paint, _ in found}
    own, *others = (colour[findings.tokens[at]] for at in (2, 3, 4, 5))
    assert own == colour["own features, linear"] == colour["own features, MLP"]
    assert len({own, *others}) == 4
    assert browser.execute_script(CLIPPED) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert "Links among rows of loan" in titles(browser, "#tables")
    pointer(browser, ("move", *position(browser, 5)))
    assert text(browser, "#tip strong") == "Loan no. 5 · node-5"
    no_errors(browser)
