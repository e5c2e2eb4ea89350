"""Generates what the chart takes from elsewhere: the table of values in the chart's README.md, from the comments in
values.yaml, and files/settings.txt, from docs/SETTINGS.md.

    python3 tests/chart/values_table.py [--write]

Without --write it only says what is out of date, and fails then."""

import json
import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tidegate"
START, END = "<!-- values: generated from values.yaml -->\n", "<!-- end of the values -->\n"
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
        default = f"`{json.dumps(value)}`" if value not in ("", None) else ""
        rows.append(f"| `{'.'.join(path)}` | {default} | {words.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def readme(old, text):
    """The README with the table of these values."""
    head, rest = old.split(START)
    return head + START + "\n" + table(text) + "\n" + END + rest.split(END)[1]


def settings(page):
    """The names of all settings, one per line."""
    return "\n".join(re.findall(r"^\| `--([a-z0-9-]+)`", page, re.MULTILINE)) + "\n"


def generated():
    """Each file, and the text that it should have."""
    values = (CHART / "values.yaml").read_text()
    return {
        CHART / "README.md": readme((CHART / "README.md").read_text(), values),
        CHART / "files" / "settings.txt": settings((ROOT / "docs" / "SETTINGS.md").read_text()),
    }


def main():
    stale = {path: text for path, text in generated().items() if path.read_text() != text}
    for path, text in stale.items():
        if "--write" in sys.argv[1:]:
            path.write_text(text)
        print(f"{'written' if '--write' in sys.argv[1:] else 'out of date'}: {path.relative_to(ROOT)}")
    return 0 if "--write" in sys.argv[1:] or not stale else 1


if __name__ == "__main__":
    sys.exit(main())
