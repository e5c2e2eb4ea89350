"""Writes OCI layouts: a directory of blobs under their digests, and an index with a tag. Archives have neither
times nor owners of this machine, so that the same content has the same digest."""

import gzip
import hashlib
import io
import json
import tarfile

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def archive(root, paths, seconds, prefix=""):
    """A tar archive of files and links below a directory, owned by root."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(paths):
            entry = tar.gettarinfo(root / path, arcname=prefix + str(path))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = seconds
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            if entry.isfile():
                with (root / path).open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)
    return packed.getvalue()


def below(root):
    """Every path below a directory."""
    return [path.relative_to(root) for path in root.rglob("*")]


def gzipped(content):
    return gzip.compress(content, compresslevel=9, mtime=0)


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


class Layout:
    """A layout in an empty directory."""

    def __init__(self, directory):
        self.directory = directory
        (directory / "blobs" / "sha256").mkdir(parents=True)
        (directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def blob(self, media_type, content, **more):
        """Stores bytes, or a value as JSON, and returns their descriptor."""
        if not isinstance(content, bytes):
            content = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        name = digest(content)
        (self.directory / "blobs" / name.replace(":", "/")).write_bytes(content)
        return {"mediaType": media_type, "digest": name, "size": len(content), **more}

    def manifest(self, config, layers, annotations, **more):
        return self.blob(MANIFEST, {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers,
                                    "annotations": annotations}, **more)

    def index(self, manifests, annotations):
        return self.blob(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests,
                                 "annotations": annotations})

    def tag(self, descriptor, name):
        """Makes a manifest or an index the one that the layout is about."""
        tagged = {**descriptor, "annotations": {"org.opencontainers.image.ref.name": name}}
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [tagged]}
        (self.directory / "index.json").write_text(json.dumps(index, indent=1) + "\n")
