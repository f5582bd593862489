#!/usr/bin/env python3
"""Checks a report page: well-formed as XML and as HTML, nothing loaded from outside, no script, charts described."""
import html.parser
import re
import sys
import xml.etree.ElementTree as ElementTree

VOID = {"meta", "link", "br", "hr", "img", "input"}
SVG = "{http://www.w3.org/1999/xhtml}svg"  # inline SVG takes the page's namespace in XML


class Balance(html.parser.HTMLParser):
    """Every tag that opens closes, in order."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.faults, self.ids = [], [], []

    def handle_starttag(self, tag, attrs):
        self.see(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.see(tag, attrs)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes something else at {self.getpos()}")

    def see(self, tag, attrs):
        if tag in {"script", "iframe", "object", "embed", "link", "img"}:
            self.faults.append(f"<{tag}> in a page that must stand alone")
        for name, value in attrs:
            if name in {"src", "href", "srcset"} or name.startswith("on"):
                self.faults.append(f"attribute {name}={value!r} reaches outside or runs code")
            if name == "id":
                self.ids.append(value)
            if value is None or re.search(r"(^|[\s:,(])-?(nan|inf)\b", value):
                self.faults.append(f"attribute {name}={value!r} of <{tag}>")


def main():
    text = open(sys.argv[1], encoding="utf-8").read()
    faults = []
    root = ElementTree.fromstring(text)
    for chart in root.iter(SVG):
        names = chart.get("aria-labelledby", "").split()
        found = {child.get("id"): child.text for child in chart if child.get("id")}
        if chart.get("role") != "img" or len(names) != 2 or not all(found.get(name) for name in names):
            faults.append("a chart without role, title or description")
    page = Balance()
    page.feed(text)
    page.close()
    faults += page.faults
    if page.open:
        faults.append(f"never closed: {page.open}")
    if len(set(page.ids)) != len(page.ids):
        faults.append("an id twice")
    if re.search(r"url\(|@import", text):
        faults.append("the style loads something")
    print("\n".join(faults))
    return 1 if faults else 0


sys.exit(main())
