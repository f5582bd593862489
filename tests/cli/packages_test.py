#!/usr/bin/env python3
"""Installed and packed files: their paths, a manual page and completions that agree with --help, and examples that the
tools they are for accept. Tests of tools that this machine lacks are skipped."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import rig

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = rig.TRAINER.parent
GENERATED = {"share/man/man1/trainer.1": ["manual"], "share/bash-completion/completions/trainer": ["completion", "bash"],
             "share/zsh/site-functions/_trainer": ["completion", "zsh"],
             "share/fish/vendor_completions.d/trainer.fish": ["completion", "fish"]}


def output(*command, status=0, **more):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=rig.TIMEOUT_SECONDS, **more)
    assert result.returncode == status, f"{command}: {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


def needs(tool):
    return unittest.skipIf(shutil.which(tool) is None, f"{tool} is not installed")


def helps(*words):
    """Returns {verb and action: what --help prints}; "" is the command without a verb."""
    text = output(rig.TRAINER, *words, "--help")
    found = {" ".join(words): text}
    for word in rig.subcommands(text):
        found |= helps(*words, word)
    return found


def options_of(text):
    return set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", text, re.M))


@needs("git")
@needs("cmake")
class Version(unittest.TestCase):
    """The version and the commit that a build writes into the program."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.sources = pathlib.Path(folder.name) / "sources"
        self.header = pathlib.Path(folder.name) / "version.h"
        self.sources.mkdir()
        (self.sources / "file").write_text("one")
        self.environment = os.environ | {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER")
                                         for what in ("NAME", "EMAIL")}

    def git(self, *words):
        return output("git", "-C", self.sources, *words, env=self.environment).strip()

    def commit(self):
        self.git("init", "--quiet")
        self.git("add", "file")
        self.git("commit", "--quiet", "--no-gpg-sign", "--message", "one")
        return self.git("rev-parse", "--short=12", "HEAD")

    def found(self, sources=None):
        output("cmake", f"-DSOURCE={sources or self.sources}", "-DPROJECT=0.1.0", f"-DHEADER={self.header}", "-P",
               ROOT / "scripts/cmake/FindVersion.cmake")
        return re.findall(r'^#define TRAINER_\w+ "(.*)"$', self.header.read_text(), re.M)

    def test_the_commit_is_that_of_the_sources_now(self):
        commit = self.commit()
        self.assertEqual(self.found(), ["0.1.0", commit])
        written = self.header.stat().st_mtime_ns
        (self.sources / "untracked").write_text("two")
        self.assertEqual(self.found(), ["0.1.0", commit])
        self.assertEqual(self.header.stat().st_mtime_ns, written, "the same commit compiles nothing again")
        (self.sources / "file").write_text("two")
        self.assertEqual(self.found(), ["0.1.0", commit + "-dirty"])
        self.git("commit", "--quiet", "--no-gpg-sign", "--all", "--message", "two")
        self.assertEqual(self.found(), ["0.1.0", self.git("rev-parse", "--short=12", "HEAD")])

    def test_the_version_is_the_tag_and_the_commits_since(self):
        commit = self.commit()
        self.git("tag", "v1.2.3")
        self.assertEqual(self.found(), ["1.2.3", commit])
        self.git("commit", "--quiet", "--no-gpg-sign", "--allow-empty", "--message", "two")
        self.assertEqual(self.found()[0], "1.2.3+1")

    def test_sources_in_a_foreign_repository_have_no_commit(self):
        self.commit()
        inner = self.sources / "unpacked"
        inner.mkdir()
        self.assertEqual(self.found(inner), ["0.1.0", ""])

    def test_sources_without_a_repository_have_no_commit(self):
        self.environment["GIT_CEILING_DIRECTORIES"] = str(self.sources.parent)
        self.assertEqual(self.found(), ["0.1.0", ""])

    def test_the_program_describes_its_build_as_text_and_as_json(self):
        text, found = output(rig.TRAINER, "--version"), json.loads(output(rig.TRAINER, "--version", "--json"))
        self.assertEqual(json.loads(output(rig.TRAINER, "--json", "-V")), found)
        self.assertEqual(text.splitlines()[0], f"trainer {found['version']} (commit {found['commit'] or 'unknown'})")
        self.assertRegex(found["compiler"], r"^(GCC|Clang) \d+\.\d+\.\d+$")
        self.assertEqual(set(found["libraries"]), {"fmt", "nlohmann-json", "toml++", "CLI11", "PCRE2", "xxHash", "zlib", "zstd", "snappy", "SentencePiece"})
        for name, version in found["libraries"].items():
            self.assertRegex(version, r"^\d+\.\d+", name)
            self.assertIn(f"{name} {version}", text)
        for words in (found["compiler"], found["build_type"], f"ISA found: {' '.join(found['isa']['found'])};", f"in use: {found['isa']['in_use']}",
                      f"fp32 with {found['matmul']['fp32']}, bf16 with {found['matmul']['bf16']}", f"{found['threads']} threads",
                      found["mpi"] or "no MPI", found["cuda"] or "no CUDA", found["nccl"] or "no NCCL", *found["mpi_modules"]):
            self.assertIn(words, text)
        cache = BUILD / "CMakeCache.txt"
        if cache.exists():
            self.assertIn(f"CMAKE_BUILD_TYPE:STRING={found['build_type']}\n", cache.read_text())
            modules = {path.name for path in BUILD.glob("trainer_mpi_*.so")}
            self.assertEqual({f"trainer_mpi_{name}.so" for name in found["mpi_modules"]}, modules)

    @needs("dpkg-query")
    def test_the_versions_of_libraries_are_those_of_the_packages(self):
        found = json.loads(output(rig.TRAINER, "--version", "--json"))["libraries"]
        for name, package in (("fmt", "libfmt-dev"), ("PCRE2", "libpcre2-dev"), ("zstd", "libzstd-dev"), ("snappy", "libsnappy-dev"), ("CLI11", "libcli11-dev"),
                              ("SentencePiece", "libsentencepiece-dev"), ("nlohmann-json", "nlohmann-json3-dev")):
            version = subprocess.run(["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True).stdout
            if version:
                self.assertTrue(version.split(":")[-1].startswith(found[name]), f"{name} {found[name]}, {package} {version}")

    def test_the_program_tells_what_its_build_wrote(self):
        header = BUILD / "generated/trainer_version.h"
        if not header.exists():
            self.skipTest("the program does not lie in its build folder")
        version, commit = re.findall(r'^#define TRAINER_\w+ "(.*)"$', header.read_text(), re.M)
        self.assertEqual(output(rig.TRAINER, "--version").splitlines()[0],
                         f"trainer {version} (commit {commit or 'unknown'})")


class Texts(unittest.TestCase):
    """The manual page and completions that the program prints."""

    @classmethod
    def setUpClass(cls):
        cls.helps = helps()
        cls.environment = os.environ | {"PATH": f"{rig.TRAINER.parent}:{os.environ['PATH']}"}

    def test_the_manual_has_every_verb_and_option(self):
        page = output(rig.TRAINER, "manual").replace("\\-", "-")
        for verb, text in self.helps.items():
            own = text.split("Options of `")[0]  # the verb's options follow
            part = page.split(".SH VERBS")[0] if verb == "" else page.split(f".SS trainer {verb}\n")[1].split(".SS")[0]
            for option in options_of(own):
                self.assertIn(option, part, f"trainer {verb}")
        self.assertIn("75 saved after a signal", " ".join(page.split()))

    def test_help_lists_what_an_action_takes(self):
        for verb, text in self.helps.items():
            if verb.startswith("checkpoint "):
                reads = verb.split()[1] not in ("import", "merge")
                self.assertEqual({"--config", "--set", "--checkpoint"} & options_of(text),
                                 {"--config", "--set", "--checkpoint"} if reads else set(), verb)
                self.assertIn("--json", options_of(text), verb)

    def test_flags_take_no_word(self):
        page = output(rig.TRAINER, "manual").replace("\\-", "-")
        self.assertNotIn("WORD", page)
        self.assertRegex(page, r"--prompt\\fR \\fITEXT")

    @needs("mandoc")
    def test_the_manual_is_sound_to_mandoc(self):
        self.check_manual(["mandoc", "-T", "lint", "-W", "warning"], {2: "missing date, using \"\""})

    @needs("groff")
    def test_the_manual_is_sound_to_groff(self):
        self.check_manual(["groff", "-man", "-ww", "-z", "-Tutf8"], {})

    def check_manual(self, tool, allowed):
        result = subprocess.run(tool, input=output(rig.TRAINER, "manual"), capture_output=True, text=True)
        faults = [line for line in (result.stdout + result.stderr).splitlines() if not any(a in line for a in allowed.values())]
        self.assertEqual(faults, [])

    def test_completions_of_bash_are_those_of_help(self):
        for verb, text in self.helps.items():
            words = ["trainer", *verb.split(), ""]
            self.assertEqual(set(self.bash([*words[:-1], "--"])), options_of(text), f"trainer {verb}")
            self.assertEqual(self.bash(words), rig.subcommands(text), f"trainer {verb}")
        self.assertEqual(self.bash(["trainer", "tok"]), ["tokenize"])
        self.assertEqual(self.bash(["trainer", "eval", "--format", "t"]), ["text", "tokens"])
        self.assertEqual(self.bash(["trainer", "checkpoint", "--checkpoint", "run", "ver"]), ["verify"])
        self.assertEqual(self.bash(["trainer", "train", "--set", "optim.l"]), ["optim.lr="])
        self.assertEqual(self.bash(["trainer", "train", "--set", "a=1", "optim.l"]), ["optim.lr="])
        self.assertEqual(self.bash(["trainer", "train", "--config", "x"]), [])  # the shell then completes file names

    def bash(self, words):
        script = (output(rig.TRAINER, "completion", "bash") + "\ncompopt() { :; }\n"
                  f"COMP_WORDS=({' '.join(repr(word) for word in words)}) COMP_CWORD={len(words) - 1}\n"
                  "_trainer; printf '%s\\n' \"${COMPREPLY[@]}\"\n")
        return [line for line in output("bash", "-u", "-c", script, env=self.environment).splitlines() if line]

    @needs("shellcheck")
    def test_completions_of_bash_are_sound_to_shellcheck(self):
        output("shellcheck", "-s", "bash", "-", input=output(rig.TRAINER, "completion", "bash"))

    @needs("fish")
    def test_completions_of_fish(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "trainer.fish"
            script.write_text(output(rig.TRAINER, "completion", "fish"))
            output("fish", "--no-execute", script)

            def complete(line):
                text = output("fish", "--no-config", "-c", f"source {script}; complete -C '{line}'", cwd=folder, env=self.environment)
                return {row.split("\t")[0] for row in text.splitlines()}
            self.assertEqual(complete("trainer tok"), {"tokenize"})
            self.assertEqual(complete("trainer eval --format t"), {"text", "tokens"})
            self.assertLessEqual(options_of(self.helps["generate"]), complete("trainer generate --"))
            self.assertEqual(complete("trainer checkpoint ver"), {"verify"})

    @needs("zsh")
    def test_completions_of_zsh(self):
        text = output(rig.TRAINER, "completion", "zsh")
        output("zsh", "-n", "-c", text)
        output("zsh", "-f", "-c", "autoload -Uz compinit; compinit -u -d /dev/null\n" + text)

    def test_an_unknown_shell_is_named(self):
        result = subprocess.run([rig.TRAINER, "completion", "csh"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("expected one of bash, zsh, fish", result.stderr)


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trainer-packages-"))
        self.addCleanup(shutil.rmtree, self.folder)


@unittest.skipIf(os.environ.get("SANITIZED"), "a program with sanitizers is not packed")
@unittest.skipUnless((BUILD / "cmake_install.cmake").exists(), f"{BUILD} is no build folder")
class Packages(Folder):
    def check_files(self, prefix, generated=GENERATED):
        program = prefix / "bin/trainer"
        self.assertIn("trainer ", output(program, "--version"))
        for path, arguments in generated.items():
            self.assertEqual((prefix / path).read_text(), output(program, *arguments), path)
        configs = {path.name for path in (prefix / "share/trainer/configs").iterdir()}
        self.assertEqual(configs, {path.name for path in (ROOT / "configs").iterdir()})
        output(program, "config", "check", "--config", "configs/quickstart.toml", cwd=prefix / "share/trainer")
        self.assertTrue((prefix / "share/doc/trainer/LICENSE").exists())
        self.check_links(prefix / "share/trainer")

    def check_links(self, root):
        for page in (root / "README.md", root / "configs/README.md", *(root / "docs").glob("*.md")):
            for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
                self.assertTrue("://" in link or (page.parent / link).exists(), f"{page}: {link}")

    def test_install(self):
        output("cmake", "--install", BUILD, "--prefix", self.folder / "local")
        self.check_files(self.folder / "local")

    @needs("cpack")
    def test_archive(self):
        output("cpack", "--config", BUILD / "CPackConfig.cmake", "-G", "TGZ", "-B", self.folder / "made", cwd=self.folder)
        archive, = (self.folder / "made").glob("*.tar.gz")
        self.assertRegex(archive.name, r"^trainer-\d+\.\d+\.\d+(\+\d+)?-linux-x86_64\.tar\.gz$")
        output("tar", "xf", archive, "-C", self.folder)
        self.check_files(self.folder / archive.name.removesuffix(".tar.gz"))

    @needs("cpack")
    @needs("dpkg-shlibdeps")
    def test_debian_package(self):
        output("cpack", "--config", BUILD / "CPackConfig.cmake", "-G", "DEB", "-B", self.folder / "made", cwd=self.folder)
        package, = (self.folder / "made").glob("*.deb")
        fields = dict(re.findall(r"^ ?([\w-]+): (.*)", output("dpkg-deb", "--info", package), re.M))
        self.assertEqual((fields["Package"], fields["Section"], fields["Architecture"]), ("trainer", "science", "amd64"))
        self.assertRegex(fields["Maintainer"], r"^[^<>@]+ <[^<>@ ]+@[^<>@ ]+\.[^<>@ ]+>$")
        for library in ("libfmt", "libsentencepiece", "libc6"):
            self.assertIn(library, fields["Depends"])
        version = re.match(r"trainer (\S+)", output(rig.TRAINER, "--version")).group(1)
        self.assertEqual(fields["Version"], version)
        output("dpkg-deb", "--extract", package, self.folder / "root")
        generated = {path.replace("zsh/site-functions", "zsh/vendor-completions"): arguments for path, arguments in GENERATED.items()}
        self.check_files(self.folder / "root/usr", generated)


class Images(unittest.TestCase):
    def test_what_the_dockerfile_copies_is_in_the_context(self):
        ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
        sources = [word for line in re.findall(r"^COPY (?!--from)(.*)", (ROOT / "Dockerfile").read_text(), re.M)
                   for word in line.split()[:-1] if not word.startswith("--")]
        self.assertIn("docs", sources)
        for path in {path.relative_to(ROOT) for source in sources if source != "." for path in ROOT.glob(source)}:
            kept = True  # the last line that matches the path or a folder above it decides
            for line in ignored:
                if any(each.match("/" + line.lstrip("!")) for each in (pathlib.Path("/") / path, *(pathlib.Path("/") / path).parents)):
                    kept = line.startswith("!")
            self.assertTrue(kept, f".dockerignore leaves out {path}, which the Dockerfile copies")


class Examples(Folder):
    SLURM = ROOT / "scripts/slurm_job.sh"

    def stand_ins(self, **status):
        """Creates programs that log their calls and exit with a given status; returns an environment that finds
        them."""
        (self.folder / "calls").write_text("")
        for name, end in status.items():
            path = self.folder / name.replace("_", "-")
            path.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >> {self.folder}/calls\nexit {end}\n')
            path.chmod(0o755)
        return {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}

    def slurm(self, status, **more):
        """Runs the job with an srun that exits with this status; returns the logged calls and the job's status."""
        environment = self.stand_ins(srun=status, scontrol=0) | {"SLURM_JOB_ID": "4711"}
        for name in ("TRAINER", "SLURM_CPUS_PER_TASK"):
            environment.pop(name, None)
        environment |= more
        result = subprocess.run([self.SLURM, "--config", "a b.toml"], cwd=self.folder, env=environment, capture_output=True, text=True)
        return (self.folder / "calls").read_text().splitlines(), result.returncode

    def test_a_job_of_slurm_that_was_saved_is_queued_again(self):
        started = "srun --mpi=pmix trainer train --config a b.toml"
        self.assertEqual(self.slurm(75), ([started, "scontrol requeue 4711"], 0))
        self.assertEqual(self.slurm(0), ([started], 0))
        self.assertEqual(self.slurm(4), ([started], 4))
        self.assertEqual(self.slurm(0, SLURM_CPUS_PER_TASK="8"), ([started.replace("pmix", "pmix --cpus-per-task=8")], 0))

    def test_a_release_refuses_a_system_whose_c_library_is_too_old(self):
        for name in ("bin", "lib/trainer", "tools"):
            (self.folder / name).mkdir(parents=True)
        shutil.copy(ROOT / "scripts/start.sh", self.folder / "bin/trainer")
        for path, text in (("lib/trainer/trainer", 'echo "started $*"'), ("tools/getconf", 'test -n "$GLIBC" && echo "glibc $GLIBC"')):
            (self.folder / path).write_text(f"#!/bin/sh\n{text}\n")
            (self.folder / path).chmod(0o755)
        (self.folder / "linked").symlink_to("bin/trainer")
        for program in ("bin/trainer", "linked"):
            # 2.31: Debian 11; 2.34: RHEL 9; 2.35: Ubuntu 22.04, too old; "": a system without glibc, such as Alpine
            # Linux.
            for glibc, starts in (("2.4", False), ("2.31", False), ("2.34", False), ("2.35", False), ("2.35.9000", False), ("", False),
                                  ("2.36", True), ("2.36.9000", True), ("2.39", True), ("2.41", True), ("2.100", True), ("3.0", True)):
                with self.subTest(program=program, glibc=glibc):
                    result = subprocess.run([self.folder / program, "--config", "a b"], capture_output=True, text=True,
                                            env={"PATH": f"{self.folder / 'tools'}:{os.environ['PATH']}", "GLIBC": glibc})
                    if starts:
                        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "started --config a b\n", ""))
                    else:
                        self.assertEqual((result.returncode, result.stdout), (2, ""))
                        for word in ("glibc 2.36", f"has: {glibc or 'none'}", "from source"):
                            self.assertIn(word, result.stderr)

    def quickstart(self, *options, gpu):
        """Runs the quick start with or without a GPU; returns its calls of cmake and mpirun, its output and its
        status."""
        environment = self.stand_ins(nvidia_smi=0 if gpu else 9, cmake=0, mpirun=0, trainer=0, install_packages_sh=0)
        for folder in ("scripts", "build"):
            (self.folder / folder).mkdir(exist_ok=True)
        shutil.copy(ROOT / "scripts/quickstart.sh", self.folder / "scripts")
        shutil.copy(self.folder / "install-packages-sh", self.folder / "scripts/install_packages.sh")
        shutil.copy(self.folder / "trainer", self.folder / "build")
        result = subprocess.run([self.folder / "scripts/quickstart.sh", *options], env=environment, capture_output=True, text=True)
        calls = [line for line in (self.folder / "calls").read_text().splitlines() if re.match("cmake --preset|mpirun", line)]
        return calls, result.stdout + result.stderr, result.returncode

    def test_the_quick_start_takes_a_gpu_only_when_it_is_requested(self):
        calls, text, status = self.quickstart("--set", "train.steps=5", gpu=True)
        self.assertEqual(status, 0, text)
        self.assertEqual(calls[0], "cmake --preset quick -DTRAINER_CUDA=OFF")
        self.assertIn("mpirun -np 2 ", calls[1])
        self.assertIn("--set run.device=cpu run.name=quickstart --set train.steps=5", calls[1])
        self.assertIn("--gpu", text)
        calls, text, status = self.quickstart("--gpu", gpu=True)
        self.assertEqual(status, 0, text)
        self.assertEqual(calls[0], "cmake --preset quick -DTRAINER_CUDA=ON")
        self.assertIn("mpirun -np 1 ", calls[1])
        self.assertIn("--set run.device=cuda run.name=quickstart-gpu", calls[1])
        calls, text, status = self.quickstart(gpu=False)
        self.assertEqual((status, calls[0]), (0, "cmake --preset quick -DTRAINER_CUDA=OFF"), text)
        self.assertNotIn("--gpu", text)
        calls, text, status = self.quickstart("--gpu", gpu=False)
        self.assertEqual((status, calls), (2, []))
        self.assertIn("leave --gpu out", text)

    def test_scripts_of_shells_are_sound(self):
        output("bash", "-n", self.SLURM)
        self.assertIn("--requeue", self.SLURM.read_text())
        self.assertIn("sbatch", output(self.SLURM, "--help"))
        if shutil.which("shellcheck") is None:
            self.skipTest("shellcheck is not installed")
        output("shellcheck", self.SLURM)

    # The fields of an MPIJob and their types, by the operator's schema (kubeflow.org_mpijobs.yaml, v2beta1).
    MPI_JOB = {"slotsPerWorker": int, "sshAuthMountPath": str, "runPolicy": {"cleanPodPolicy": str, "backoffLimit": int},
               "mpiReplicaSpecs": {name: {"replicas": int, "restartPolicy": str, "template": {"spec": dict}} for name in ("Launcher", "Worker")}}

    def test_images_have_labels_that_say_what_they_were_built_from(self):
        # The stage from which all images with the program start.
        text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
        stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", text, re.M | re.S))
        labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', stages["runtime"]))
        arguments = re.findall(r"(\w+)=", "".join(re.findall(r"^ARG (.*)$", stages["runtime"], re.M)))
        self.assertEqual(labels["title"], "trainer")
        self.assertEqual(labels["licenses"], "Apache-2.0")
        for name in ("version", "revision", "created", "source"):
            self.assertEqual(labels[name], f"${name.upper()}")
            self.assertIn(name.upper(), arguments)
        for stage in ("cpu", "cuda", "kubernetes"):
            self.assertIn(f"\nFROM runtime AS {stage}\n", text)

    def kubernetes_job(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("Python's yaml is not installed")
        return yaml.safe_load((ROOT / "configs/kubernetes.yaml").read_text())

    def check_fields(self, found, expected, place):
        if isinstance(expected, type):
            self.assertIs(type(found), expected, place)
            return
        self.assertLessEqual(set(found), set(expected), place)
        for name, value in found.items():
            self.check_fields(value, expected[name], f"{place}.{name}")

    def test_the_job_of_kubernetes_has_fields_of_the_mpi_operator(self):
        job = self.kubernetes_job()
        self.assertEqual(set(job), {"apiVersion", "kind", "metadata", "spec"})
        self.check_fields(job["spec"], self.MPI_JOB, "spec")
        self.assertIn(job["spec"]["runPolicy"]["cleanPodPolicy"], ("None", "Running", "All"))
        for replicas in job["spec"]["mpiReplicaSpecs"].values():
            self.assertIn(replicas["restartPolicy"], ("Never", "OnFailure"))

    def test_the_pods_of_kubernetes_follow_its_schema(self):
        job = self.kubernetes_job()
        try:
            import kubernetes_validate
        except ImportError:
            self.skipTest("Python's kubernetes-validate, which contains the schemas of Kubernetes, is not installed")
        for name, replicas in job["spec"]["mpiReplicaSpecs"].items():
            pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name.lower()}, "template": replicas["template"]}
            kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)

    def test_the_job_of_kubernetes(self):
        path = ROOT / "configs/kubernetes.yaml"
        job = self.kubernetes_job()
        self.assertEqual((job["apiVersion"], job["kind"]), ("kubeflow.org/v2beta1", "MPIJob"))
        launcher, worker = (job["spec"]["mpiReplicaSpecs"][name]["template"]["spec"] for name in ("Launcher", "Worker"))
        words = launcher["containers"][0]["args"]
        verb = words[words.index("trainer") + 1:]
        self.assertEqual(verb[:2], ["train", "--config"])
        mounts = {mount["name"]: mount["mountPath"] for mount in worker["containers"][0]["volumeMounts"]}
        self.assertEqual(set(mounts), {volume["name"] for volume in worker["volumes"]})
        self.assertTrue(verb[2].startswith(mounts["config"]))
        self.assertTrue(all(isinstance(word, str) for word in words))
        for tool, options in (("kubeconform", ["-ignore-missing-schemas"]), ("yamllint", ["-d", "{extends: relaxed, rules: {line-length: disable}}"])):
            if shutil.which(tool):
                output(tool, *options, path)


if __name__ == "__main__":
    rig.main()
