"""The files of a release: checksums, archives, bills of materials, notes."""

import json
import os
import tarfile
import unittest

import release


class Files(unittest.TestCase):
    def test_every_file_has_a_checksum_that_sha256sum_confirms(self):
        listed = {line.split("  ", 1)[1] for line in (release.ARTEFACTS / "SHA256SUMS").read_text().splitlines()}
        there = {str(path.relative_to(release.ARTEFACTS)) for path in release.ARTEFACTS.rglob("*") if path.is_file()}
        self.assertEqual(listed, there - {"SHA256SUMS"})
        release.run("sh", "-c", f"cd '{release.ARTEFACTS}' && sha256sum --check --strict --quiet SHA256SUMS")

    def test_an_archive_unpacks_to_a_prefix_with_the_program_of_the_image(self):
        self.assertTrue(release.architectures())
        for architecture in release.architectures():
            name = f"tidegate-{release.VERSION}-{architecture}-unknown-linux-musl"
            with self.subTest(architecture), tarfile.open(release.ARTEFACTS / f"{name}.tar.gz") as archive:
                self.assertEqual({entry.uid for entry in archive}, {0})
                held = {entry.name.removeprefix(f"{name}/") for entry in archive if entry.isfile()}
                self.assertLessEqual({"bin/tidegate", "share/man/man1/tidegate.1", "share/man/man1/tidegate-serve.1",
                                      "share/bash-completion/completions/tidegate", "share/doc/tidegate/LICENSE",
                                      "share/zsh/site-functions/_tidegate",
                                      "share/fish/vendor_completions.d/tidegate.fish"}, held)
                program = archive.extractfile(f"{name}/bin/tidegate").read()
            self.assertEqual(program, (release.root(architecture) / "bin/tidegate").read_bytes())
            mode = os.stat(release.root(architecture) / "bin/tidegate").st_mode
            self.assertEqual(mode & 0o777, 0o755)

    def test_the_bill_of_materials_beside_the_archive_is_complete(self):
        for architecture in release.architectures():
            path = release.ARTEFACTS / f"tidegate-{release.VERSION}-{architecture}-unknown-linux-musl.cdx.json"
            bom = json.loads(path.read_text())
            self.assertEqual((bom["bomFormat"], bom["specVersion"]), ("CycloneDX", "1.5"))
            refs = {component["bom-ref"] for component in bom["components"]}
            names = {component["name"] for component in bom["components"]}
            self.assertLessEqual({"tokio", "h2", "redis", "rustls", "mimalloc"}, names)
            self.assertFalse({"proptest", "rcgen", "tonic-prost-build", "protox"} & names, "tests and builds are not inside")
            refs.add(bom["metadata"]["component"]["bom-ref"])
            self.assertEqual({entry["ref"] for entry in bom["dependencies"]}, refs)
            self.assertTrue(all(set(entry["dependsOn"]) <= refs for entry in bom["dependencies"]))
            self.assertTrue(all(c.get("licenses") and c.get("hashes") for c in bom["components"]), "each has a licence")
            inside = release.root(architecture) / "usr/share/tidegate/sbom.cdx.json"
            self.assertEqual(path.read_bytes(), inside.read_bytes())

    def test_the_notes_are_the_section_of_this_version(self):
        notes = (release.ARTEFACTS / "NOTES.md").read_text()
        self.assertTrue(notes.startswith(f"## {release.VERSION}"), notes[:40])
        self.assertEqual(notes.count("\n## "), 0, "the next section is not part of it")
        self.assertIn(notes, (release.ROOT / "CHANGELOG.md").read_text())
