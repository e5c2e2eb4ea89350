"""Repository and image are named in Cargo.toml, and every other file agrees."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import tomllib
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPOSITORY, IMAGE = "https://git.example.org/team/tidegate", "images.example.org/team/tidegate"
NAMED = ["README.md", "docs/INTEGRATIONS.md", "charts/tidegate/README.md", "charts/tidegate/values.yaml",
         "charts/tidegate/Chart.yaml", "Cargo.toml"]
# What only something published can be asked for; a folder can be installed from without.
PUBLISHED = re.compile(r"docker pull|helm repo add|helm (?:install|pull)[^\n]*oci://|/releases/(?:latest|download)|"
                       r"cargo (?:install|add) tidegate(?![^\n]*--path)|(?:pip|npm) install tidegate(?!\S*/)")


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return listed.stdout.split("\n")[:-1]


class Names(unittest.TestCase):
    def names(self, root, *arguments):
        return subprocess.run([root / ".ci/release/names", *arguments], capture_output=True, text=True)

    def copy(self):
        """The files that name something, and the script, in a directory of their own."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        root = pathlib.Path(directory.name)
        for name in [*NAMED, ".ci/release/names"]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        return root

    def publish(self, root, repository, image):
        text = (root / "Cargo.toml").read_text()
        text = re.sub(r'(\[package.metadata.release\]\nrepository = )".*"\nimage = ".*"',
                      rf'\1"{repository}"\nimage = "{image}"', text)
        (root / "Cargo.toml").write_text(text)

    def test_every_file_names_the_repository_and_the_image_of_cargo_toml(self):
        checked = self.names(ROOT, "--check")
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))

    def test_one_change_in_cargo_toml_names_them_everywhere_and_back(self):
        root = self.copy()
        release = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["metadata"]["release"]
        before = {name: (root / name).read_bytes() for name in NAMED}
        self.publish(root, REPOSITORY, IMAGE)
        checked = self.names(root, "--check")
        self.assertEqual(checked.returncode, 1)
        self.assertIn("charts/tidegate/values.yaml", checked.stderr)
        self.assertEqual(self.names(root).returncode, 0)
        self.assertEqual(self.names(root, "--check").returncode, 0)

        readme = (root / "README.md").read_text()
        self.assertIn(f"git clone {REPOSITORY} tidegate", readme)
        self.assertNotIn("git clone REPOSITORY", readme)
        self.assertEqual(yaml.safe_load((root / "charts/tidegate/values.yaml").read_text())["image"]["repository"], IMAGE)
        chart = yaml.safe_load((root / "charts/tidegate/Chart.yaml").read_text())
        self.assertEqual((chart["home"], chart["sources"]), (REPOSITORY, [REPOSITORY]))
        self.assertEqual(tomllib.loads((root / "Cargo.toml").read_text())["package"]["repository"], REPOSITORY)
        self.assertIn(f"image: {IMAGE}:", (root / "docs/INTEGRATIONS.md").read_text())
        self.assertNotIn("No image is published", (root / "charts/tidegate/README.md").read_text())

        self.publish(root, release["repository"], release["image"])
        self.assertEqual(self.names(root).returncode, 0)
        self.assertEqual({name: (root / name).read_bytes() for name in NAMED}, before)

    def test_the_chart_has_the_version_of_the_program(self):
        version = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
        chart = yaml.safe_load((ROOT / "charts/tidegate/Chart.yaml").read_text())
        self.assertEqual((chart["version"], chart["appVersion"]), (version, version))
        for key in ("description", "keywords", "maintainers", "icon", "annotations", "kubeVersion"):
            self.assertTrue(chart[key], key)

    def test_nothing_claims_to_be_published_while_nothing_is(self):
        release = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["metadata"]["release"]
        if release["repository"] and release["image"]:
            return
        found = [f"{name}: {match}" for name in tracked("*.md", "*.yaml", "*.toml", "*.txt", "Dockerfile")
                 for match in PUBLISHED.findall((ROOT / name).read_text(errors="replace"))]
        self.assertEqual(found, [])
