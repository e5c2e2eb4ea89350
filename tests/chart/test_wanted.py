"""Every value that people set does what wanted.txt says of it, and the manifests stay valid. Not here: values that
contradict each other (test_refused), the modes as a whole (test_render)."""

import functools
import json
import re
import unittest

import jsonschema
import kubernetes_validate
import yaml

import chart
import values_table
from test_render import KUBERNETES, OURS

LINE = re.compile(r"(?P<values>\{.*?\})(?: with (?P<given>\{.*\}))? => (?P<no>no )?(?P<kind>[A-Za-z]+)(?:/(?P<name>\S+))? "
                  r"(?P<part>\{.*\}|/.*/)(?: @(?P<since>1\.\d+))?")


def lines():
    """The lines of wanted.txt, as their number and parts."""
    for number, line in enumerate((chart.HERE / "wanted.txt").read_text().splitlines(), 1):
        if line and not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match, f"wanted.txt:{number}: not of the form that its head shows"
            yield number, match


def contains(whole, part):
    """Whether a value has everything of another: in a map all keys, in a list something for each item."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(name in whole and contains(whole[name], v) for name, v in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and all(any(contains(item, p) for item in whole) for p in part)
    return whole == part


@functools.cache
def rendered(values):
    """The objects that values, as JSON, render, and the refusal; one of them is empty."""
    try:
        return chart.manifests(json.loads(values)), ""
    except Exception as error:  # the library has a class for each stage
        return [], str(error)


@functools.cache
def fault(manifest, version):
    """What is wrong with a manifest, as JSON, in a version of Kubernetes; None if nothing is."""
    manifest = json.loads(manifest)
    try:
        if manifest["kind"] in OURS:
            schema = json.loads((chart.HERE / "schemas" / OURS[manifest["kind"]]).read_text())
            jsonschema.validate(manifest, schema)
        else:
            kubernetes_validate.validate(manifest, version, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
        return str(error)
    return None


def meets(objects, match):
    """Whether an object is as the line says."""
    part = match["part"]
    for manifest in objects:
        if manifest["kind"] == match["kind"] and manifest["metadata"]["name"].endswith(match["name"] or ""):
            if part.startswith("/") and re.search(part[1:-1], yaml.safe_dump(manifest)):
                return True
            if part.startswith("{") and contains(manifest, yaml.safe_load(part)):
                return True
    return False


class Wanted(unittest.TestCase):
    def test_every_wanted_value_has_its_effect_and_renders_valid_manifests(self):
        count = 0
        for number, match in lines():
            with self.subTest(line=number, values=match["values"]):
                given = yaml.safe_load(match["given"] or "{}")
                values = chart.merged(given, yaml.safe_load(match["values"]))
                (before, _), (after, refused) = rendered(json.dumps(given)), rendered(json.dumps(values))
                self.assertEqual(refused, "")
                self.assertEqual(meets(after, match), not match["no"], "with the values")
                self.assertEqual(meets(before, match), bool(match["no"]), "without the values")
                since = int((match["since"] or "1.0").split(".")[1])
                for version in [v for v in KUBERNETES if int(v.split(".")[1]) >= since]:
                    for manifest in after:
                        self.assertIsNone(fault(json.dumps(manifest, sort_keys=True), version), version)
                count += 1
        self.assertGreater(count, 180)

    def test_every_described_value_is_wanted(self):
        def paths(values, path=()):
            yield path
            if isinstance(values, dict):
                for name, value in values.items():
                    yield from paths(value, path + (name,))

        wanted = set()
        for _, match in lines():
            wanted |= set(paths(yaml.safe_load(match["values"])))
        described = values_table.described((chart.CHART / "values.yaml").read_text())
        self.assertEqual([".".join(path) for path in described if path not in wanted], [])

    def test_a_line_that_does_nothing_is_found(self):
        base, _ = rendered("{}")
        idle = LINE.fullmatch("{nameOverride: gate} => Service {metadata: {name: nobody}}")
        self.assertFalse(meets(base, idle))
        self.assertTrue(meets(base, LINE.fullmatch("{nameOverride: gate} => Service {}")))


class Generated(unittest.TestCase):
    def test_the_readme_lists_the_values_as_they_are(self):
        self.assertEqual(values_table.README.read_text(), values_table.generated(),
                         "python3 tests/chart/values_table.py --write")

    def test_every_value_is_described(self):
        self.assertEqual(values_table.undescribed((chart.CHART / "values.yaml").read_text()), [])
