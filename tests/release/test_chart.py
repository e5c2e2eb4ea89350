"""The chart as Helm pulls it from a registry."""

import unittest

import helm_python
import yaml

import release

POLICY = {"policy": {"files": {"a.yaml": "domain: a\n"}}}
SOMEWHERE = {"image": {"repository": "registry.example.com/tidegate"}}


class PulledChart(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        pulled = release.scratch() / "chart"
        pulled.mkdir()
        helm_python.pull(f"oci://{release.registry()}/charts/tidegate", version=release.VERSION, plain_http=True,
                         destination=pulled)
        cls.archive = pulled / f"tidegate-{release.VERSION}.tgz"
        cls.chart = helm_python.Chart.load(cls.archive)

    def image(self, values):
        rendered = self.chart.render(values, name="edge", namespace="limits")
        deployment = yaml.safe_load(rendered["tidegate/templates/deployment.yaml"])
        return deployment["spec"]["template"]["spec"]["containers"][0]["image"]

    def test_it_renders_with_the_digest_of_the_image(self):
        self.assertEqual(self.image({**POLICY, **SOMEWHERE}),
                         f"registry.example.com/tidegate@{release.digest('image')}")

    def test_without_a_published_image_it_says_what_to_set(self):
        if repository := self.chart.values["image"]["repository"]:
            self.assertEqual(self.image(POLICY), f"{repository}@{release.digest('image')}")
            return
        with self.assertRaisesRegex(Exception, "image.repository: this chart names no published image"):
            self.image(POLICY)

    def test_it_is_the_packed_chart_in_this_version_without_test_values(self):
        self.assertEqual(self.archive.read_bytes(), (release.ARTEFACTS / self.archive.name).read_bytes())
        self.assertEqual((self.chart.version, self.chart.metadata["appVersion"]), (release.VERSION, release.VERSION))
        names = [file["name"] for file in self.chart.files]
        self.assertIn("RUNBOOK.md", names)
        self.assertFalse([name for name in names if name.startswith("ci/")])
