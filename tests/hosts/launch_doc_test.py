#!/usr/bin/python3
"""docs/LAUNCH.md's MPIJob is YAML, and has the fields of the MPI operator's version 2 and no others.

Skipped, with the reason, without Debian's python3-yaml. The fields are those of kubeflow/mpi-operator, MPIJobSpec of
v2beta1, and of a pod's template as far as the example goes.
"""
import os
import re
import sys
import unittest

try:
    import yaml
except ImportError:
    print("skipped: there is no module yaml (Debian package python3-yaml)")
    sys.exit(77)

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "LAUNCH.md")
SPEC = {"slotsPerWorker", "runLauncherAsWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath", "launcherCreationPolicy",
        "mpiImplementation"}
CONTAINER = {"name", "image", "command", "args", "env", "resources", "volumeMounts"}


class MpiJob(unittest.TestCase):
    def setUp(self):
        with open(PAGE, encoding="utf-8") as page:
            blocks = re.findall(r"```yaml\n(.*?)```", page.read(), re.DOTALL)
        self.assertEqual(len(blocks), 1)
        self.job = yaml.safe_load(blocks[0])

    def test_it_is_one(self):
        self.assertEqual(set(self.job), {"apiVersion", "kind", "metadata", "spec"})
        self.assertEqual((self.job["apiVersion"], self.job["kind"]), ("kubeflow.org/v2beta1", "MPIJob"))
        self.assertLessEqual(set(self.job["spec"]), SPEC)

    def test_replicas_are_pods(self):
        replicas = self.job["spec"]["mpiReplicaSpecs"]
        self.assertEqual(set(replicas), {"Launcher", "Worker"})
        for name, replica in replicas.items():
            with self.subTest(name):
                self.assertEqual(set(replica), {"replicas", "template"})
                self.assertIsInstance(replica["replicas"], int)
                for container in replica["template"]["spec"]["containers"]:
                    self.assertLessEqual(set(container), CONTAINER)
                    self.assertLessEqual({"name", "image"}, set(container))

    def test_it_starts_as_many_ranks_as_there_are_slots_and_says_where_they_meet(self):
        spec = self.job["spec"]["mpiReplicaSpecs"]
        command = spec["Launcher"]["template"]["spec"]["containers"][0]["command"]
        self.assertTrue(all(isinstance(word, str) for word in command), command)
        self.assertEqual(int(command[command.index("-np") + 1]),
                         self.job["spec"]["slotsPerWorker"] * spec["Worker"]["replicas"])
        name = self.job["metadata"]["name"]
        self.assertRegex(" ".join(command), rf"-x PEAL_ROOT={name}-worker-0\.{name}:\d+")


if __name__ == "__main__":
    unittest.main()
