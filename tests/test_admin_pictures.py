"""Pictures of runs: what they show can be told without their colours, and read aloud."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from django_cronductor.admin.pictures import BASELINE, TALLEST, Bar, Lane, Span, Timeline, sparkline, timeline

SVG = "{http://www.w3.org/2000/svg}"


def drawn(bars: list[Bar]) -> dict[str, str]:
    """Return the outlines of a sparkline by their classes."""
    root = ElementTree.fromstring(sparkline(bars, "a", "words"))
    return {path.get("class") or "": path.get("d") or "" for path in root.iter("path")}


def test_each_kind_has_a_shape_of_its_own() -> None:
    paths = drawn([Bar("good", 1.0), Bar("bad", 1.0), Bar("running", 1.0), Bar("skipped")])
    assert set(paths) == {"line", "good", "bad", "running", "skipped"}
    shapes = {re.sub(r"M[\d.]+ ", "M", path) for path in paths.values()}
    assert len(shapes) == 5
    # A cross above the bar; no bottom; below the line.
    assert paths["bad"].count("l3 3") == paths["bad"].count("l-3 3") == 1
    assert not paths["running"].endswith("z")
    assert f" {BASELINE}" not in paths["skipped"]


def test_the_height_of_a_bar_is_its_duration() -> None:
    assert re.findall(r"v-(\d+)", drawn([Bar("good", 10.0), Bar("good", 5.0), Bar("good", 0.0)])["good"]) == [
        str(TALLEST),
        str(TALLEST // 2),
        "2",
    ]


@pytest.mark.parametrize("duration", [None, 0.0])
def test_runs_of_no_known_length_are_seen_all_the_same(duration: float | None) -> None:
    assert "v-2" in drawn([Bar("good", duration)])["good"]


def test_the_newest_bar_is_at_the_right() -> None:
    assert drawn([Bar("good", 1.0)])["good"].startswith("M116 ")
    assert drawn([Bar("good", 1.0)] * 30)["good"].startswith("M0 ")


def test_no_runs_are_a_line() -> None:
    assert set(drawn([])) == {"line"}


def test_a_sparkline_says_in_words_what_it_shows_and_escapes_them() -> None:
    root = ElementTree.fromstring(sparkline([], "runs-1", "3 <failed> & 'more'"))
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "runs-1"
    [title] = root.iter("title")
    assert title.get("id") == "runs-1"
    assert title.text == "3 <failed> & 'more'"


def picture(*lanes: Lane, across: tuple[Span, ...] = ()) -> ElementTree.Element:
    return ElementTree.fromstring(
        timeline(Timeline("Title <&>", "Words", [(0.0, "12:00"), (0.5, "18:00")], lanes, across))
    )


def test_a_timeline_has_a_title_a_description_and_an_axis() -> None:
    root = picture(Lane("web-1", []))
    assert [root.findtext("title"), root.findtext("desc")] == ["Title <&>", "Words"]
    assert root.get("aria-labelledby") == "timeline-title timeline-desc"
    assert [text.text for text in root.iter("text") if (text.get("class") or "").startswith("tick")] == [
        "12:00",
        "18:00",
    ]


def test_each_lane_has_its_name_and_its_spans() -> None:
    root = picture(Lane("<web>", [Span(0.25, 0.5, "good", "one")]), Lane("web-2", [Span(0.5, 0.5, "bad", "two")]))
    assert [text.text for text in root.iter("text") if text.get("class") is None] == ["<web>", "web-2"]
    one, two = root.iter("rect")
    assert (one.get("x"), one.get("width"), one.findtext("title")) == ("25.000%", "25.000%", "one")
    assert (two.get("x"), two.get("width"), two.findtext("title")) == ("50.000%", "0.000%", "two")
    assert int(two.get("y") or 0) > int(one.get("y") or 0)


def test_what_is_wrong_has_a_mark_and_not_only_a_colour() -> None:
    spans = [Span(0.1, 0.2, "bad", ""), Span(0.3, 0.3, "skipped", ""), Span(0.4, 0.5, "good", "")]
    root = picture(Lane("web-1", spans), across=(Span(0.6, 0.7, "overlap", ""),))
    assert [text.text for text in root.iter("text") if "mark" in (text.get("class") or "")] == ["!!", "x", "o"]


def test_nothing_is_drawn_outside() -> None:
    [rect] = picture(Lane("web-1", [Span(-1.0, 2.0, "good", "")])).iter("rect")
    assert (rect.get("x"), rect.get("width")) == ("0.000%", "100.000%")
