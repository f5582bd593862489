#!/usr/bin/env python3
"""MPI loaded at run time: which library is chosen, which is rejected, and that training does not depend on it."""
import os
import re
import shutil
import subprocess
import unittest

import rig

VERSION = subprocess.run([rig.TRAINER, "--version"], capture_output=True, text=True).stdout


@unittest.skipUnless("MPI at run time" in VERSION, "this build does not load MPI at run time (TRAINER_MPI=MODULE)")
class Modules(rig.Runs):
    def refused(self, *words, program=rig.TRAINER, **environment):
        result = subprocess.run([program, "--config", "config.toml"], cwd=self.folder, capture_output=True, text=True,
                                timeout=rig.TIMEOUT_SECONDS, env={**os.environ, **environment})
        self.assertEqual(result.returncode, 2, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertFalse((self.folder / "run").exists())

    def test_what_cannot_be_loaded_is_refused_with_every_attempt(self):
        ranks = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
        self.refused("TRAINER_MPI=lam", "expected openmpi, mpich, or the path", **ranks, TRAINER_MPI="lam")
        self.refused("TRAINER_MPI=./libmpi.so", "No such file", **ranks, TRAINER_MPI="./libmpi.so")
        (self.folder / "libmpi.so.40").write_text("not a library")
        self.refused("openmpi: ", "libmpi.so.40", "libopenmpi3", **ranks, LD_LIBRARY_PATH=str(self.folder))

    def test_a_library_that_finds_fewer_ranks_is_refused(self):
        # This happens if mpirun and the library are of different MPIs: each process is then a world of one rank.
        self.refused("2 ranks were started, but Open MPI", "finds 1", "TRAINER_MPI", OMPI_COMM_WORLD_SIZE="2")

    def test_a_module_that_is_missing_or_of_another_version_is_refused(self):
        single = self.folder / "alone"
        single.mkdir()
        program = shutil.copy2(rig.TRAINER, single)
        self.refused("trainer_mpi_openmpi.so", "next to the program", program=program, OMPI_COMM_WORLD_SIZE="2")
        if shutil.which("cc") is None:
            self.skipTest("no C compiler: a module of another version is not tried")
        source = single / "module.c"
        source.write_text("static const int table[32] = {99};\nconst void* trainer_mpi(void) { return table; }\n")
        subprocess.run(["cc", "-shared", "-fPIC", source, "-o", single / "trainer_mpi_openmpi.so"], check=True)
        self.refused("interface 99, expected 1", program=program, OMPI_COMM_WORLD_SIZE="2")

    @unittest.skipIf(shutil.which("mpiexec.mpich") is None, "MPICH is not installed")
    def test_two_libraries_train_alike_and_are_not_mixed(self):
        common = ("train.micro_batch=1", "run.threads=1")
        self.train_on(2, "run.dir=openmpi", *common, transport="mpi")
        self.launcher = ["mpiexec.mpich", "-np", "2"]
        self.train("run.dir=mpich", *common)
        self.assert_same_run(8, "mpich", "openmpi")
        self.launcher = ["mpiexec.mpich", "-np", "2", "-env", "TRAINER_MPI", "openmpi"]
        stderr = self.train("run.dir=mixed", *common, status=2)
        self.assertIn("2 ranks were started, but Open MPI", stderr)
        self.launcher = []


@unittest.skipUnless(re.search(r"\bMPI v?[0-9]", VERSION), "this build does not link an MPI library (TRAINER_MPI=ON)")
class Linked(rig.Runs):
    def test_a_launcher_of_another_library_is_refused_with_advice_that_works(self):
        result = subprocess.run([rig.TRAINER, "--config", "config.toml"], cwd=self.folder, capture_output=True, text=True,
                                timeout=rig.TIMEOUT_SECONDS, env={**os.environ, "OMPI_COMM_WORLD_SIZE": "2"})
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("2 ranks were started, but", result.stderr)
        self.assertIn("is linked to it", result.stderr)
        self.assertNotIn("TRAINER_MPI", result.stderr)  # which has no effect


if __name__ == "__main__":
    unittest.main()
