"""The artefacts, and a registry that they are pushed to and pulled from, as the tests see them. Not here: what must
hold (test_*.py)."""

import atexit
import contextlib
import functools
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from processes import PATIENCE_SECONDS, ROOT, free_port, until  # noqa: E402

VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
# The directory that run.py was given.
ARTEFACTS = None
PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64"}


def run(*command):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
    return done.stdout


def program(*names):
    """The first of these programs that is installed."""
    found = next(filter(None, map(shutil.which, names)), None)
    assert found, f"{names[0]} is missing: .ci/tools registry skopeo umoci qemu"
    return found


@functools.cache
def scratch():
    directory = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    # chroot as somebody else needs to enter it.
    directory.chmod(0o755)
    return directory


def digest(name):
    """The digest that a layout is tagged with."""
    index = json.loads((ARTEFACTS / name / "index.json").read_text())
    (tagged,) = index["manifests"]
    assert tagged["annotations"] == {"org.opencontainers.image.ref.name": VERSION}
    return tagged["digest"]


def architectures():
    return [a for a in PLATFORMS if (ARTEFACTS / f"tidegate-{VERSION}-{a}-unknown-linux-musl.tar.gz").exists()]


@functools.cache
def registry():
    """A registry of our own that has the image and the chart: its host and port."""
    port = free_port()
    config = scratch() / "registry.yml"
    config.write_text(json.dumps({
        "version": 0.1, "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(scratch() / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"}}))
    log = (scratch() / "registry.log").open("w")
    process = subprocess.Popen([program("docker-registry", "registry"), "serve", config],
                               stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    atexit.register(process.wait)
    atexit.register(process.kill)

    def listens():
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5).status == 200

    until("the registry listens", listens)
    host = f"127.0.0.1:{port}"
    for layout, name in (("image", "tidegate"), ("chart", "charts/tidegate")):
        run(program("skopeo"), "--insecure-policy", "copy", "--all", "--preserve-digests", "--dest-tls-verify=false",
            f"oci:{ARTEFACTS / layout}:{VERSION}", f"docker://{host}/{name}:{VERSION}")
    return host


@functools.cache
def root(architecture):
    """The file system of the image for an architecture, pulled by its digest as a kubelet would."""
    pulled, unpacked = scratch() / f"pulled-{architecture}", scratch() / architecture
    run(program("skopeo"), "--insecure-policy", "--override-os", "linux", "--override-arch", PLATFORMS[architecture],
        "copy", "--src-tls-verify=false", f"docker://{registry()}/tidegate@{digest('image')}", f"oci:{pulled}:pulled")
    run(program("umoci"), "unpack", "--image", f"{pulled}:pulled", unpacked)
    return unpacked / "rootfs"


def image_config(architecture):
    """The process that umoci reads from the image, as the runtime would start it."""
    root(architecture)
    return json.loads((scratch() / architecture / "config.json").read_text())["process"]


def listing():
    """Every artefact with its size. A layout is one artefact."""
    sizes = {}
    for path in sorted(path for path in ARTEFACTS.rglob("*") if path.is_file()):
        first, *rest = path.relative_to(ARTEFACTS).parts
        name = f"{first}/" if rest else first
        sizes[name] = sizes.get(name, 0) + path.stat().st_size
    for architecture in architectures():
        name = f"  {architecture}: bin/tidegate in the image"
        sizes[name] = (root(architecture) / "bin" / "tidegate").stat().st_size
    return "\n".join(f"{size:>12,}  {name}" for name, size in sizes.items())
