"""Generates the table of values in the chart's README.md from the comments in values.yaml.

    python3 tests/chart/values_table.py [--write]

Without --write it only says what is out of date, and fails then."""

import json
import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tidegate"
README = CHART / "README.md"
START, END = "<!-- values: generated from values.yaml -->\n", "<!-- end of the values -->\n"
# A release sets it (.ci/release/names); the head of the README says whether it did.
SET_BY_RELEASE = ("image", "repository")
KEY = re.compile(r"^( *)([A-Za-z0-9]+):(?: |$)")


def described(text):
    """Every value with a description: its path as a tuple, and the text after `# --`."""
    found, path, words = {}, [], None
    for line in text.splitlines():
        comment = line.strip()
        if comment.startswith("# -- "):
            words = [comment.removeprefix("# -- ")]
        elif comment.startswith("#") and words:
            words.append(comment.lstrip("# "))
        elif match := KEY.match(line):
            # Two spaces per level.
            path = path[: len(match[1]) // 2] + [match[2]]
            if words:
                found[tuple(path)] = " ".join(words)
            words = None
        else:
            words = None
    return found


def undescribed(text):
    """Values without a description, neither of their own nor of a map that they are in."""
    known = described(text)

    def walk(value, path):
        if path in known and not (isinstance(value, dict) and any(k[: len(path)] == path and k != path for k in known)):
            return
        if isinstance(value, dict) and value:
            for name, child in value.items():
                yield from walk(child, path + (name,))
        else:
            yield ".".join(path)

    return list(walk(yaml.safe_load(text), ()))


def table(text):
    """The rows of the README, in the order of values.yaml."""
    defaults = yaml.safe_load(text)
    known = described(text)
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for path, words in known.items():
        if any(len(other) > len(path) and other[: len(path)] == path for other in known):
            continue
        value = defaults
        for name in path:
            value = value[name]
        default = "" if value in ("", None) or path == SET_BY_RELEASE else f"`{json.dumps(value)}`"
        rows.append(f"| `{'.'.join(path)}` | {default} | {words.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def readme(old, text):
    """The README with the table of these values."""
    head, rest = old.split(START)
    return head + START + "\n" + table(text) + "\n" + END + rest.split(END)[1]


def generated():
    """The README as it should be."""
    return readme(README.read_text(), (CHART / "values.yaml").read_text())


def main():
    text = generated()
    if README.read_text() == text:
        return 0
    if "--write" not in sys.argv[1:]:
        print(f"{README.relative_to(ROOT)}: out of date; --write writes it")
        return 1
    README.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
