#!/usr/bin/env python3
"""Packs an installed release (scripts/release.sh): licences, SBOM, archives and a wheel. Equal inputs give equal bytes.

usage: pack_release.py PREFIX VERSION OUT    PREFIX: folder with bin/, lib/trainer/, share/; OUT: for the results
"""
import base64
import csv
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import time
import zipfile

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
PLATFORM = "manylinux_2_36_x86_64"
# Components linked into the program, by source package; the libraries in lib/trainer are added by their packages.
BUILT_IN = {"libfmt-dev": "MIT", "libpcre2-dev": "BSD-3-Clause WITH PCRE2-exception", "libutf8proc-dev": "MIT", "zlib1g-dev": "Zlib", "libzstd-dev": "BSD-3-Clause", "libsnappy-dev": "BSD-3-Clause",
            "nlohmann-json3-dev": "MIT", "libtomlplusplus-dev": "MIT", "libcli11-dev": "BSD-3-Clause", "libxxhash-dev": "BSD-2-Clause"}
BUNDLED = {"libsentencepiece0": "Apache-2.0", "libstdc++6": "GPL-3.0-or-later WITH GCC-exception-3.1",
           "libgcc-s1": "GPL-3.0-or-later WITH GCC-exception-3.1"}
METADATA = """Metadata-Version: 2.1
Name: trainer-llm
Version: {version}
Summary: Pretrains GPT-style language models with tensor parallelism
License: Apache-2.0
Requires-Python: >=3.8
Provides-Extra: openmpi
Requires-Dist: openmpi (>=4.1.7,<6) ; extra == 'openmpi'
Provides-Extra: mpich
Requires-Dist: mpich ; extra == 'mpich'
Description-Content-Type: text/markdown

{readme}"""
MAIN = '''"""python -m trainer_llm: the program of this installation."""
import os
import pathlib
import sys
import sysconfig

here = pathlib.Path(__file__).resolve()
places = [pathlib.Path(sysconfig.get_path("scripts")), *(parent / "bin" for parent in here.parents[1:5])]
program = next((place / "trainer" for place in places if (place / "trainer").exists()), None)
if program is None:
    sys.exit("trainer_llm: the program trainer was not found in " + ", ".join(map(str, places)))
os.execv(program, [str(program), *sys.argv[1:]])
'''


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def package_of(library):
    """Returns the package of a copied library: the one that owns the file of that name."""
    lines = output("dpkg-query", "-S", f"*/{os.uname().machine}-linux-gnu/{library}").splitlines()
    return sorted(line.split(":")[0] for line in lines)[0]


def file_component(file):
    return {"type": "file", "name": file.name, "hashes": [{"alg": "SHA-256", "content": sha256(file.read_bytes())}]}


def component(package, licence, files):
    version = output("dpkg-query", "-W", "-f=${Version}", package)
    return {"type": "library", "name": package, "version": version, "purl": f"pkg:deb/debian/{package}@{version}?arch=amd64",
            "licenses": [{"expression": licence}],
            **({"components": [file_component(file) for file in files]} if files else {})}


def components(prefix):
    """Returns the components of the SBOM; writes their licences into share/doc/trainer/licenses."""
    folder = prefix / "share/doc/trainer/licenses"
    folder.mkdir()
    bundled = {}
    for file in sorted((prefix / "lib/trainer").iterdir()):
        if file.name.startswith("lib"):
            bundled.setdefault(package_of(file.name), []).append(file)
    unknown = bundled.keys() - BUNDLED.keys()
    if unknown:
        sys.exit(f"pack_release.py: no licence is listed for the bundled {', '.join(sorted(unknown))}: add it to BUNDLED")
    found = []
    for package, licence in sorted({**BUILT_IN, **{name: BUNDLED[name] for name in bundled}}.items()):
        text = pathlib.Path("/usr/share/doc") / package / "copyright"
        if not text.exists():
            sys.exit(f"pack_release.py: {text} is missing: the licence of {package} cannot be packed")
        (folder / f"{package}.txt").write_bytes(text.read_bytes())
        found.append(component(package, licence, bundled.get(package, [])))
    return found


def archive(prefix, out):
    """Writes NAME.tar.gz and NAME.tar.zst."""
    tar = ["tar", "--sort=name", f"--mtime=@{EPOCH}", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rw,go+r-w", "--format=gnu",
           "-C", str(prefix.parent), "-cf", "-", prefix.name]
    data = subprocess.run(tar, check=True, capture_output=True).stdout
    for suffix, tool in (("gz", ["gzip", "-9n"]), ("zst", ["zstd", "-19", "-q", "-c"])):
        (out / f"{prefix.name}.tar.{suffix}").write_bytes(subprocess.run(tool, input=data, check=True, capture_output=True).stdout)


def wheel(prefix, version, sbom, out):
    """Writes a wheel whose command is bin/trainer; Python only unpacks it (PEP 427; location of the SBOM: PEP 770)."""
    name, tag = f"trainer_llm-{version}", f"py3-none-{PLATFORM}"
    files = {}
    linked = {path.resolve() for path in prefix.rglob("*") if path.is_symlink()}  # zip files have no links, so each library is stored under one name
    for path in sorted(prefix.rglob("*")):
        if path.is_file() and not (path in linked and not path.is_symlink()):
            inner = path.relative_to(prefix)
            to = f"{name}.data/scripts/trainer" if str(inner) == "bin/trainer" else f"{name}.data/data/{inner}"
            files[to] = (path.read_bytes(), path.stat().st_mode & 0o111)
    readme = (prefix / "share/trainer/README.md").read_text()
    info = f"{name}.dist-info"
    texts = {"trainer_llm/__init__.py": f'__version__ = "{version}"\n', "trainer_llm/__main__.py": MAIN,
             f"{info}/METADATA": METADATA.format(version=version, readme=readme),
             f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: pack_release.py\nRoot-Is-Purelib: false\nTag: {tag}\n",
             f"{info}/sboms/trainer.cdx.json": sbom}
    files |= {path: (text.encode(), 0) for path, text in texts.items()}
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for path, (data, _) in files.items():
        rows.writerow([path, "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("="), len(data)])
    rows.writerow([f"{info}/RECORD", "", ""])
    files[f"{info}/RECORD"] = (record.getvalue().encode(), 0)
    when = time.gmtime(max(EPOCH, 315532800))[:6]  # zip files cannot store times before 1980
    with zipfile.ZipFile(out / f"{name}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as packed:
        for path, (data, executable) in files.items():
            entry = zipfile.ZipInfo(path, when)
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, data, compresslevel=9)


def main():
    prefix, version, out = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], pathlib.Path(sys.argv[3])
    own = [file for file in sorted((prefix / "lib/trainer").iterdir()) if not file.name.startswith("lib")]
    sbom = json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
                       "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH)),
                                    "component": {"type": "application", "name": "trainer", "version": version,
                                                  "licenses": [{"expression": "Apache-2.0"}],
                                                  "components": [file_component(file) for file in own]}},
                       "components": components(prefix)}, indent=1) + "\n"
    (out / f"{prefix.name}.cdx.json").write_text(sbom)
    archive(prefix, out)
    wheel(prefix, version, sbom, out)


main()
