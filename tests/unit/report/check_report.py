#!/usr/bin/env python3
"""Checks a report page: well-formed as XML and as HTML, nothing loaded from outside, no script, charts described."""
import re
import sys
import xml.etree.ElementTree as ElementTree

HTML = "{http://www.w3.org/1999/xhtml}"  # inline SVG takes the page's namespace in XML
ALWAYS_EMPTY = {"meta", "br", "hr", "line", "path", "rect", "circle"}  # HTML reads <p/> as <p>


def faults_of(text):
    ids = []
    for element in ElementTree.fromstring(text).iter():
        name = element.tag.removeprefix(HTML)
        if name in {"script", "iframe", "object", "embed", "link", "img"}:
            yield f"<{name}> in a page that must stand alone"
        for key, value in element.items():
            other_report = name == "a" and key == "href" and re.fullmatch(r"\./[^?#]*report\.html", value)
            if not other_report and (key in {"src", "href", "srcset"} or key.startswith("on")):
                yield f"attribute {key}={value!r} reaches outside or runs code"
            if re.search(r"(^|[\s:,(])-?(nan|inf)\b", value):
                yield f"attribute {key}={value!r} of <{name}>"
        ids += [element.get("id")] if element.get("id") else []
        if name == "svg":
            names = element.get("aria-labelledby", "").split()
            found = {child.get("id"): child.text for child in element}
            if element.get("role") != "img" or len(names) != 2 or not all(found.get(name) for name in names):
                yield "a chart without role, title or description"
    yield from (f"<{name}/>" for name in re.findall(r"<(\w+)[^<>]*/>", text) if name not in ALWAYS_EMPTY)
    if len(set(ids)) != len(ids):
        yield "an id twice"
    if re.search(r"url\(|@import", text):
        yield "the style loads something"


faults = list(faults_of(open(sys.argv[1], encoding="utf-8").read()))
print("\n".join(faults))
sys.exit(1 if faults else 0)
